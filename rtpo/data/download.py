"""One file over HTTP: whole and with the checksum expected, or not there."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from rtpo.core.files import disk_errors
from rtpo.data.registry import HUB
from rtpo.errors import DataError

TOKEN = "HF_TOKEN"
"""environment variable with a Hugging Face token, which is sent to the Hub alone"""
ENDPOINT = "HF_ENDPOINT"
"""environment variable with the address of a mirror of the Hub"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """attempts: in all, where a server is slow, fails or breaks off. first_wait: seconds before the second one, doubled
    before each later one. timeout: seconds to connect, and between two parts of an answer."""

    attempts: int = 4
    first_wait: float = 1.0
    timeout: float = 30.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """revision: the commit that the Hub says it served; None elsewhere."""

    sha256: str
    bytes: int
    revision: str | None


class _Again(Exception):
    """A failure that another attempt may not have."""


class Changed(DataError):
    """Other bytes than expected."""


class _Refused(DataError):
    def __init__(self, url: str, status: int) -> None:
        reason = ", it may want a token" if status in (401, 403) else ", it may have moved" if status == 404 else ""
        super().__init__(f"{url} answered {status}{reason}")
        self.status = status


def download(url: str, target: Path, expected: str | None, patience: Patience = Patience()) -> Fetched:
    """Get `url` as `target`. expected: its sha256; None where none is known.

    It is written to `<target>.part`, begun anew at each attempt, flushed, and moved last: what has the name `target` is
    whole. Raises DataError saying what happened, with both checksums where they differ.
    """
    part = target.with_name(target.name + ".part")

    def fetch() -> Fetched:
        digest = hashlib.sha256()
        with _answer(url, patience) as answer, disk_errors(part), part.open("wb") as file:
            for piece in answer.iter_bytes():
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            return Fetched(digest.hexdigest(), file.tell(), answer.headers.get("x-repo-commit"))

    fetched = _patiently(url, fetch, patience)
    if expected is not None and fetched.sha256 != expected:
        part.unlink()
        raise Changed(f"{url} has the sha256 {fetched.sha256} ({fetched.bytes} bytes), and {expected} was expected")
    with disk_errors(target):
        part.replace(target)
    return fetched


def check_gate(data_set: str, patience: Patience = Patience()) -> None:
    """Ask the Hub whether the user may read a data set. Raises DataError saying how to be let in."""
    url = f"{HUB}/api/datasets/{data_set}/auth-check"

    def ask() -> None:
        with _answer(url, patience):
            pass

    try:
        _patiently(url, ask, patience)
    except _Refused as error:
        if error.status not in (401, 403):
            raise
        raise DataError(
            f"{data_set} is gated, and the Hub answered {error.status}; accept its terms at {HUB}/datasets/{data_set} "
            f"and put a token of yours into the environment variable {TOKEN}"
        ) from error


def _patiently(url: str, act: Callable[[], T], patience: Patience) -> T:
    failure = ""
    for attempt in range(patience.attempts):
        if attempt:
            time.sleep(patience.first_wait * 2 ** (attempt - 1))
        try:
            return act()
        except _Again as error:
            failure = str(error)
    raise DataError(f"{url} failed {patience.attempts} times, the last time because {failure}")


@contextmanager
def _answer(url: str, patience: Patience) -> Iterator[httpx.Response]:
    """What a GET answers, with its body still to come; failures of the network until its end raise too."""
    hub = os.environ.get(ENDPOINT, HUB).rstrip("/")
    # as it is: the length of a compressed answer says nothing of the file's
    headers = {"Accept-Encoding": "identity"}
    if url.startswith(f"{HUB}/"):
        url = hub + url.removeprefix(HUB)
        if token := os.environ.get(TOKEN):
            headers["Authorization"] = f"Bearer {token}"
    try:
        # at another host httpx does not repeat the token
        with httpx.stream("GET", url, headers=headers, timeout=patience.timeout, follow_redirects=True) as response:
            if response.status_code == 429 or response.status_code >= 500:
                raise _Again(f"it answered {response.status_code}")
            if not response.is_success:
                raise _Refused(url, response.status_code)
            yield response
    except httpx.ConnectError as error:
        raise DataError(f"{url} cannot be reached ({error}), there may be no network") from error
    except (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError) as error:
        raise _Again(f"of {type(error).__name__} ({error})") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DataError(f"{url} cannot be read: {error}") from error
