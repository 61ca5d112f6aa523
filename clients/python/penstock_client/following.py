"""How a stream is followed over many connections: cursor, end and retries. Pure, but for the clock.

`Client` and `AsyncClient` open the connections and pass on what happens to them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal

import httpx

from penstock.sse import Frame, Parser
from penstock_client import retries
from penstock_client.errors import GONE, DeadlineReached, foreign, retry_after_s
from penstock_client.retries import Retries, Server

if TYPE_CHECKING:
    from penstock.events import Event

NO_CONTENT: Final = 204
OK: Final = 200
TOO_MANY: Final = 429  # of the user's streams or requests, which may be those that have just broken


@dataclass(frozen=True, slots=True)
class Notice:
    """What the server says about the stream, and not about the run. It has no cursor.

    The codes are in docs/clients.md: `history_truncated` says that earlier events are no longer
    kept, `token_expires` that the stream will end with the token.
    """

    run_id: str
    data: dict[str, Any]  # `code` and `message`
    type: Literal["system.warning"] = "system.warning"

    @property
    def code(self) -> str:
        return str(self.data.get("code", ""))


def read(frame: Frame) -> Event | Notice:
    """Return what a frame of the canonical dialect says. Raises penstock.events.InvalidEvent."""
    # the models take most of the time of the package's import, and not everybody reads events
    from penstock.events import parse  # noqa: PLC0415 - for this reason

    body: dict[str, Any] = json.loads(frame.data)
    return parse(body) if "sequence" in body else Notice(body["run_id"], body["data"])


def ends(event: Event | Notice, run_id: str) -> bool:
    """Return whether the event is the end of this run, and not of a run inside it."""
    from penstock.events import TERMINAL  # noqa: PLC0415 - as above

    return event.type in TERMINAL and event.run_id == run_id


class Following:
    """One stream. `until` says when it is over: with the run, or never."""

    def __init__(
        self,
        server: Server,
        path: str,
        query: Mapping[str, str],
        after: str | None,
        *,
        until: Literal["end of run", "never"],
        deadline_s: float | None = None,
    ) -> None:
        self.path = path
        self.query = dict(query)
        self.cursor = after
        self.is_over = False
        self._until = until
        self._deadline_s = deadline_s
        self._end_s = inf if deadline_s is None else time.monotonic() + deadline_s
        self._server = server
        self._retries = Retries(server, retries.GIVE_UP_S)
        self._parser = Parser()
        self._any_frame = False
        self._retry_after_s: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        cursor = {"Last-Event-ID": self.cursor} if self.cursor else {}
        # Some proxies that compress, such as Caddy's, hold events until the stream has ended.
        return {"Accept": "text/event-stream", "Accept-Encoding": "identity", **cursor}

    @property
    def timeout(self) -> httpx.Timeout:
        """The time limits of the next connection."""
        read_s = min(retries.STREAM_READ_TIMEOUT_S, max(self._end_s - time.monotonic(), 0.001))
        return httpx.Timeout(retries.REQUEST_TIMEOUT_S, read=read_s)

    def open(
        self, status: int, headers: Mapping[str, str]
    ) -> Literal["stream", "nothing", "refusal"]:
        """Begin a connection that was answered with this status, and return what follows.

        Raises Unreachable for a page, such as the one that a server of pages has for all paths.
        """
        self._parser, self._any_frame = Parser(), False
        self._retry_after_s = retry_after_s(headers)
        if status == OK:
            if not headers.get("content-type", "").startswith("text/event-stream"):
                raise foreign(self._server.url)
            return "stream"
        if status == NO_CONTENT:
            self.is_over = True
        elif status == GONE and self._until == "never" and self.cursor is not None:
            self.cursor = None  # NATS has lost what came after the cursor, so begin now
        elif status not in (*retries.TRY_AGAIN, TOO_MANY):
            return "refusal"
        return "nothing"

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that a chunk completes. The cursor is that of the last yielded frame."""
        self._retries.renew()  # keep-alive comments also show that the server answers
        for frame in self._parser.feed(chunk):
            self.cursor, self._any_frame = frame.id or self.cursor, True
            yield frame
        self._check_deadline()

    def failed(self, error: httpx.TransportError) -> float:
        """Return the pause in seconds after a connection that broke.

        Raises Unreachable, DeadlineReached.
        """
        return self._limited(lambda: self._retries.after(error))

    def ended(self, status: int) -> float:
        """Return the pause in seconds after a connection that ended.

        Raises Unreachable, DeadlineReached.
        """
        if self.is_over:
            return 0.0
        if status != OK:
            why = " (too many streams or requests)" if status == TOO_MANY else ""
            text, least_s = f"it answered {status}{why}", self._retry_after_s
            return self._limited(lambda: self._retries.pause_s(text, least_s))
        if self._until == "never" or not self._any_frame:
            return self._limited(lambda: self._retries.pause_s("the stream ended"))
        # Without ids, a new connection would repeat all frames.
        self.is_over = self.cursor is None
        return 0.0

    def _limited(self, pause_s: Callable[[], float]) -> float:
        self._check_deadline()
        return min(pause_s(), self._end_s - time.monotonic())

    def _check_deadline(self) -> None:
        if self._deadline_s is not None and time.monotonic() >= self._end_s:
            raise DeadlineReached(self._deadline_s, self.cursor)
