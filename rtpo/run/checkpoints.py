"""A run's checkpoints: saves to go on from, whole or not there, with checksums that are compared when one is read."""

import pickle
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rtpo.core.files import checked_sums, flush, partial_of, write_sums, write_whole
from rtpo.errors import DataError


@dataclass(frozen=True)
class Save:
    """A place to go on from: weights in `folder`, everything else in `state`. weights_sha256: by file in `folder`."""

    folder: Path
    state: dict[str, Any]
    weights_sha256: Mapping[str, str]


class Saves:
    """checkpoints/ of a run: a folder a save, and `latest`, the name of the last.

    Until all of it is on disk, and again while it is deleted, a save is called <name>.partial, which is never read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pointer = path / "latest"

    def write(self, name: str, state: dict[str, Any], write_weights: Callable[[Path], Any]) -> None:
        """A save, the latest from then on. `write_weights(folder)` writes weights and returns its part of the state."""
        partial, final = partial_of(self.path / name), self.path / name
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            state = state | {"harness": write_weights(partial / "weights")}
            (partial / "state.pkl").write_bytes(pickle.dumps(state))
            write_sums(partial)
            for place in (partial, *partial.rglob("*")):
                flush(place)
            if final.exists():  # a crash came before `latest` named it
                shutil.rmtree(final.rename(partial_of(self.path / f"{name}.old")))
            partial.rename(final)
            write_whole(self.pointer, name.encode())
        finally:  # whatever ended it; a save that is whole has its own name by then
            shutil.rmtree(partial, ignore_errors=True)

    def names(self) -> list[str]:
        """Of whole saves, by age: the names tell their order whatever the clock did."""
        return sorted(save.name for save in self.path.glob("step*") if save.suffix != ".partial")

    def keep(self, latest: str, count: int) -> None:
        """Delete saves that are not whole, and all whole ones but the latest and the `count` - 1 before it."""
        names = self.names()
        place = names.index(latest)
        for name in (*names[: max(0, place - (count - 1))], *names[place + 1 :]):
            (self.path / name).rename(partial_of(self.path / name))
        for left in self.path.glob("*.partial"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    @property
    def latest_name(self) -> str | None:
        """Of the last save, which is not read. Raises DataError where there is none of this name."""
        if not self.pointer.exists():  # it was lost, or a crash came before it
            return next(reversed(self.names()), None)
        name = self.pointer.read_text(errors="replace").strip()
        if name not in self.names():
            raise DataError(f"{self.pointer} is damaged: there is no save {name!r}.")
        return name

    def read(self, name: str) -> Save:
        """Checked. Raises DataError naming a file of the save that is not as it was written."""
        folder = self.path / name
        sums = checked_sums(folder)
        try:
            state = pickle.loads((folder / "state.pkl").read_bytes())
        except Exception as error:  # whatever another version's classes say
            raise DataError(
                f"{folder / 'state.pkl'} is whole and cannot be read ({error}): it is another version's."
            ) from error
        place, inside = folder / "weights", "weights/"
        weights = {name.removeprefix(inside): found for name, found in sums.items() if name.startswith(inside)}
        return Save(place, state, weights)
