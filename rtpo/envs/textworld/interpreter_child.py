"""The child process of `interpreter`. It reads a `Request` in JSON per line and answers with the game's text in JSON.

A fault in the interpreter, a C library, ends only this process. The file is run by its path and imports nothing from
this project.
"""

import json
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, TypedDict

SEED = 0
GAMES = 16
"""games kept open"""
STATES = 1024
"""states kept, about 40 KB each"""


class Request(TypedDict):
    game: str  # path of the story file
    commands: list[str]


class Player:
    """Plays games from the start or from a kept state; both give the same texts."""

    def __init__(self) -> None:
        self._games: OrderedDict[str, Any] = OrderedDict()
        self._states: OrderedDict[tuple[str, tuple[str, ...]], Any] = OrderedDict()

    def answer(self, file: str, commands: tuple[str, ...]) -> str:
        """The game's answer to the last command, or its opening if there are no commands."""
        state = self._states.get((file, commands[:-1])) if commands else None
        if state is None:
            return list(self.replay(file, commands))[-1]
        game = self._open(file)
        game.set_state(state)
        return self._say(game, file, commands)

    def replay(self, file: str, commands: Iterable[str]) -> Iterator[str]:
        """The game's opening, then its answer to each command."""
        game = self._open(file)
        opening, _ = game.reset()
        yield self._remember(game, file, (), opening)
        done: tuple[str, ...] = ()
        for command in commands:
            done = (*done, command)
            yield self._say(game, file, done)

    def _say(self, game: Any, file: str, commands: tuple[str, ...]) -> str:
        text, _, _, _ = game.step(commands[-1])
        return self._remember(game, file, commands, text)

    def _remember(self, game: Any, file: str, commands: tuple[str, ...], text: str) -> str:
        self._states[file, commands] = game.get_state()
        if len(self._states) > STATES:
            self._states.popitem(last=False)
        return text

    def _open(self, file: str) -> Any:
        import jericho

        if file not in self._games:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", jericho.UnsupportedGameWarning)
                self._games[file] = jericho.FrotzEnv(file, SEED)
            if len(self._games) > GAMES:
                self._games.popitem(last=False)[1].close()
        self._games.move_to_end(file)
        return self._games[file]


def main() -> None:
    player = Player()
    # send the library's own output to stderr
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        print(json.dumps("ready"), file=answers, flush=True)
        for line in sys.stdin:
            request: Request = json.loads(line)
            print(json.dumps(player.answer(request["game"], tuple(request["commands"]))), file=answers, flush=True)


if __name__ == "__main__":
    main()
