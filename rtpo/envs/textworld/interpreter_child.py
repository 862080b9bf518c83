"""What runs in a child process of `interpreter`: a line of JSON in, with a game's file and commands; what it says out.

The interpreter is a C library without protection: a fault in it ends its process, and so this one and no other. Run by
its path; imports nothing of the project.
"""

import json
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

SEED = 0
GAMES = 16
"""that are kept open"""
STATES = 1024
"""that are remembered, of some 40 KB each"""


class Player:
    """Plays games from their start or from a state that it remembers; both give the same texts."""

    def __init__(self) -> None:
        self._games: OrderedDict[str, Any] = OrderedDict()
        self._states: OrderedDict[tuple[str, tuple[str, ...]], Any] = OrderedDict()

    def answer(self, file: str, commands: tuple[str, ...]) -> str:
        """What a game says to the last of these commands; its opening where there are none."""
        state = self._states.get((file, commands[:-1])) if commands else None
        if state is None:
            return list(self.replay(file, commands))[-1]
        game = self._open(file)
        game.set_state(state)
        return self._say(game, file, commands)

    def replay(self, file: str, commands: Iterable[str]) -> Iterator[str]:
        """The game's opening, and what it says to each of these commands."""
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
    # whatever the library prints goes to stderr
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        print(json.dumps("ready"), file=answers, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps(player.answer(asked["game"], tuple(asked["commands"]))), file=answers, flush=True)


if __name__ == "__main__":
    main()
