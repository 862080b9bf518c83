"""Requests to a server, with timeouts, retries and a rate limit. After the last try they raise InfrastructureError."""

import asyncio
import json
import os
import random
import re
import time
from calendar import timegm
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from rtpo.core.bounds import Count, Positive
from rtpo.core.visible import in_one_line
from rtpo.errors import ConfigError, InfrastructureError

MOST_BYTES = 16 << 20
"""size of the largest reply that is read"""
QUOTED = 300
"""most characters of a reply that an error message quotes"""

_TEMPORARY = (408, 425, 429)
"""statuses of temporary client errors: the request is tried again"""

SHORTEST_SECRET = 8
"""characters of the shortest key that is blanked in replies"""

T = TypeVar("T")


@dataclass(frozen=True)
class RequestSettings:
    """How requests to a server are made.

    timeout_seconds: limit of one try, its reply included.
    tries: most tries of one request, the first included.
    first_wait_seconds: limit of the wait before the second try. Each further limit is twice as high, up to
        longest_wait_seconds. The wait is random, from half of its limit to all of it. The server's Retry-After replaces
        a shorter wait. A Retry-After above longest_wait_seconds ends the tries.
    per_second: most requests that a client begins in a second (null: no limit).
    """

    timeout_seconds: Positive = 30.0
    tries: Count = 5
    first_wait_seconds: Positive = 1.0
    longest_wait_seconds: Positive = 60.0
    per_second: Positive | None = None

    def __post_init__(self) -> None:
        if self.longest_wait_seconds < self.first_wait_seconds:
            raise ValueError(
                f"longest_wait_seconds is {self.longest_wait_seconds:g}: use first_wait_seconds "
                f"({self.first_wait_seconds:g}) or more"
            )

    def wait(self, tries: int) -> float:
        """Seconds to wait after this many failed tries."""
        return random.uniform(0.5, 1) * min(self.first_wait_seconds * 2.0 ** (tries - 1), self.longest_wait_seconds)


def url_problems(url: str | None, path: str) -> list[str]:
    """Problems of a server's address. The records contain it, so it must not contain a key. path: of the setting."""
    if url is None:
        return [f"{path} is missing: name the server's address, such as http://127.0.0.1:8000/v1."]
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        return [f"{path} has a user, a query or a fragment, which would go into the records: use the address alone."]
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return [f"{path} is {url!r}: use an http:// or https:// address."]
    return []


def key_problems(variable: str | None, path: str) -> list[str]:
    """Problems of a setting that names an environment variable with a server's key. variable: None for a server without
    a key. path: of the setting."""
    if variable is None or variable.isidentifier():
        return []
    # not shown: it may be the key itself
    return [f"{path} is not the name of an environment variable: name the one that holds the key."]


def read_key(variable: str | None, owner: str) -> str:
    """The key in an environment variable; empty if no variable is named. owner: whose key, for messages. Raises
    ConfigError if the variable is not set, or if its key cannot be sent."""
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(f"{owner} key is missing: put it into the environment variable {variable}.")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"the environment variable {variable} holds no valid key: a header cannot carry some of its characters."
        )
    return key


class Client:
    """A client of one server. Its connections live no longer than a request, so it may be used in any event loop.

    It honours the standard proxy variables (HTTPS_PROXY, NO_PROXY). The key in the variable `key_variable` is sent only
    in `header`. The client blanks the key in replies, in any JSON spelling, unless the key is shorter than
    SHORTEST_SECRET. Raises ConfigError as `read_key` does.
    """

    def __init__(
        self,
        url: str,
        settings: RequestSettings,
        key_variable: str | None = None,
        owner: str = "",
        header: str = "Authorization",
        scheme: str = "Bearer ",
    ) -> None:
        self.url = url
        self._settings = settings
        self._secret = read_key(key_variable, owner)
        # not compressed, so that a reply's size is known before it is in memory
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        self._headers |= {header: scheme + self._secret} if self._secret else {}
        # a shorter key, such as the placeholder EMPTY, is no secret, and a reply may contain it as a word
        self._key_pattern = _spellings(self._secret) if len(self._secret) >= SHORTEST_SECRET else None
        self._gap = 1 / settings.per_second if settings.per_second else 0.0
        self._next = 0.0
        """when the next request may begin"""

    async def _wait_to_begin(self) -> None:
        """Wait until a request may begin. Requests are evenly spaced. A Retry-After delays later calls alone."""
        now = time.monotonic()
        start = max(now, self._next)
        self._next = start + self._gap
        await asyncio.sleep(start - now)

    async def ask(
        self, method: str, read: Callable[[Any], T], *, params: Mapping[str, str] | None = None, body: Any = None
    ) -> T:
        """The reply to one request. `read` converts its JSON; if `read` raises ValueError, LookupError,
        TypeError or AttributeError, the reply counts as malformed.

        Raises InfrastructureError after the last try.
        """
        longest = self._settings.longest_wait_seconds
        for number in range(1, self._settings.tries + 1):
            await self._wait_to_begin()
            try:
                return await self._try(method, read, params, body)
            except _Failed as error:
                failed = error
            if failed.retry_after:
                self._next = max(self._next, time.monotonic() + min(failed.retry_after, longest))
            if not failed.is_temporary or number == self._settings.tries or failed.retry_after > longest:
                break
            await asyncio.sleep(self._settings.wait(number))
        times = "once" if number == 1 else f"{number} times"
        raise InfrastructureError(f"the server {self.url} failed {times}; the last time it {failed}", failed.status)

    async def _try(self, method: str, read: Callable[[Any], T], params: Mapping[str, str] | None, body: Any) -> T:
        problem = ""
        try:
            async with (
                asyncio.timeout(self._settings.timeout_seconds),
                httpx.AsyncClient(timeout=None, headers=self._headers, verify=_tls()) as client,
                # redirects are not followed: they would send the key to another server
                client.stream(method, self.url, params=params, json=body) as response,
            ):
                if (encoding := response.headers.get("Content-Encoding", "identity").lower()) != "identity":
                    raise _Failed(f"answered in the encoding {in_one_line(encoding, 20)}, which was not asked for")
                content = bytearray()
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > MOST_BYTES:
                        raise _Failed(f"gave a reply of more than {MOST_BYTES} bytes")
        except TimeoutError:
            problem = f"gave no reply within {self._settings.timeout_seconds:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            problem = self._quoted(f"could not be reached ({type(error).__name__}: {error})")
        if problem:  # raised outside of `except`, so that the error holds no reference to the request
            raise _Failed(problem)
        status, text = response.status_code, self._blank(content.decode("utf-8", "replace"))
        if status != 200:
            wait = _retry_after(response.headers.get("Retry-After", ""))
            problem = f"answered status {status}: {self._quoted(text)}"
            is_temporary = status >= 500 or status in _TEMPORARY
            raise _Failed(problem.rstrip(": ."), wait, is_temporary, status)
        try:
            return read(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            problem = self._quoted(f"gave a malformed reply ({error!r}): {text}")
        raise _Failed(problem)

    def _blank(self, text: str) -> str:
        """The text with the key blanked."""
        return self._key_pattern.sub("***", text) if self._key_pattern else text

    def _quoted(self, text: str) -> str:
        return in_one_line(self._blank(text), QUOTED)


class _Failed(Exception):
    def __init__(
        self, problem: str, retry_after: float = 0.0, is_temporary: bool = True, status: int | None = None
    ) -> None:
        super().__init__(problem)
        self.retry_after, self.is_temporary, self.status = retry_after, is_temporary, status


def _spellings(secret: str) -> re.Pattern[str]:
    """Matches a key in plain text and in JSON: each character plain, after backslashes, or as \\u and its number. JSON
    nested in JSON doubles the backslashes."""
    letters = [rf"(?:\\+u(?i:{ord(letter):04x})|\\*{re.escape(letter)})" for letter in secret]
    return re.compile("".join(letters))


_tls = cache(httpx.create_ssl_context)
"""created once, since this takes longer than a request"""


def _retry_after(value: str) -> float:
    """Seconds of a Retry-After header, which has seconds or a GMT date; 0 if it is invalid."""
    try:
        if value.strip().isdecimal():
            return float(value)
        date = parsedate(value)
        return max(0.0, timegm(date) - time.time()) if date else 0.0
    except (ValueError, OverflowError, TypeError, IndexError):  # such as an impossible date
        return 0.0
