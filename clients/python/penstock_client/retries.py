"""When a client tries again, and when it gives up. Pure, but for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import httpx

from penstock_client.errors import Unreachable, unreachable

REQUEST_TIMEOUT_S: Final = 30.0
# A stream counts as broken after this many seconds without bytes. In this time, a healthy server
# sends three keep-alive comments.
STREAM_READ_TIMEOUT_S: Final = 45.0
BACKOFF_S: Final = (0.5, 1.0, 2.0, 5.0)  # the seconds between tries; the last value is repeated
GIVE_UP_S: Final = 120.0  # of a stream
CALL_GIVE_UP_S: Final = 10.0  # of any other request
TRY_AGAIN: Final = frozenset({502, 503, 504})

Notice = Callable[[str], None]


class Server:
    """The server at one URL: whether it has answered yet, and who learns about its failures."""

    def __init__(self, url: str, notice: Notice) -> None:
        self.url = url
        self.notice = notice
        # While the server has never answered, its URL may be wrong, so nothing is tried again.
        self.has_answered = False


class Retries:
    """Limits the time of retries after failures. A success resets the limit."""

    def __init__(self, server: Server, give_up_s: float) -> None:
        self._server = server
        self._give_up_s = give_up_s
        self._failures = 0
        self._silent_s = 0.0  # the time from the first failure in a row to the last one
        self._last_s = 0.0  # when the last failure was

    def renew(self) -> None:
        self._server.has_answered = True
        self._failures = 0

    def after(self, error: httpx.TransportError) -> float:
        """Return the pause before the next try. Raises Unreachable if there should be none."""
        if isinstance(error, httpx.UnsupportedProtocol):
            raise unreachable(self._server.url, error) from error
        no_connection = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        if no_connection and not self._server.has_answered:
            raise unreachable(self._server.url, error) from error
        return self.pause_s(str(error) or type(error).__name__)

    def pause_s(self, failure: str, least_s: float | None = None) -> float:
        """Report a failure and return the pause before the next try, in seconds.

        Raises Unreachable after `give_up_s`.
        """
        # A computer that sleeps does not try: between failures, only the time of one try counts.
        past_s = min(time.monotonic() - self._last_s, STREAM_READ_TIMEOUT_S)
        self._silent_s = self._silent_s + past_s if self._failures else 0.0
        self._last_s = time.monotonic()
        if self._silent_s > self._give_up_s:
            text = f"{self._server.url} does not answer since {self._give_up_s:g} s: {failure}"
            raise Unreachable(text, "silent")
        pause_s = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
        pause_s = max(pause_s, min(least_s or 0.0, self._give_up_s))
        self._failures += 1
        self._server.notice(f"connection lost ({failure}); trying again in {pause_s:g} s")
        return pause_s
