"""The client of one run: it starts the run, and asks what the protocol offers until the end."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import copy
import json
import time
from collections.abc import Callable
from typing import Any, Final
from typing import Protocol as Interface

import httpx

from penstock_conformance.chaos.judge import Seen
from penstock_conformance.chaos.protocols.base import NOTHING, Protocol, Run, Said
from penstock_conformance.exchange import Frame, Frames, Request

_PAUSE_S: Final = 0.3  # before a further request
_CONNECT_S: Final = 2.0
_SILENCE_S: Final = 15.0  # after which a client takes a silent stream for broken
_REREAD_S: Final = 3.0
_OK: Final = range(200, 300)


class NotUnderstood(Exception):
    """The error for an answer that is not of the protocol."""


class Log(Interface):
    """Takes one line of what happened."""

    def __call__(self, what: str, **fields: Any) -> None: ...


class Client:
    """Follows one run. `killed_s` (time.monotonic) is set when the server is killed."""

    def __init__(self, http: httpx.AsyncClient, protocol: Protocol, run: Run, log: Log) -> None:
        self.run = run
        self.seen = Seen(run.name)
        self.killed_s: float | None = None
        self._http = http
        self._protocol = protocol
        self._log = log
        self._asked_s = 0.0  # when the present request was sent

    async def follow(self) -> None:
        """Start the run and follow it to its end, or until the protocol offers nothing more.

        Raises:
            NotUnderstood: an answer is not of the protocol.
        """
        for request in self._protocol.start(self.run):
            if not await self._ask(request):
                break
        while self.seen.end is None:
            further = self._protocol.next(self.run)
            if further is None:
                self._log("nothing to ask", run=self.run.name)
                return
            if self.run.asked:
                await asyncio.sleep(_PAUSE_S)
            await self._ask(further)
            self.run.asked += 1

    async def reread(self) -> None:
        """Read the whole run again, as a client that comes later. Raises NotUnderstood."""
        request = self._protocol.reread(self.run)
        if request is None:
            return
        run, words = copy.deepcopy(self.run), set[int]()

        def add(said: Said) -> None:
            words.update(said.words, said.shown)

        with contextlib.suppress(TimeoutError):  # the stream of a run without an end stays open
            async with asyncio.timeout(_REREAD_S):
                await self._ask(request, run=run, add=add, later=True)
        self.seen.reread = words

    async def _ask(
        self,
        request: Request,
        *,
        run: Run | None = None,
        add: Callable[[Said], None] | None = None,
        later: bool = False,
    ) -> bool:
        """Send a request and read its answer. Return whether the whole answer came."""
        run, add = run or self.run, add or self._add
        self._asked_s = time.monotonic()
        self._log("request", run=run.name, later=later, request=f"{request.method} {request.path}")
        try:
            return await self._read(request, run, add, later)
        except httpx.TransportError as error:
            self._log("cut", run=run.name, error=type(error).__name__)
            self._forget_what_was_under_way()
        except (KeyError, TypeError, ValueError) as error:
            what = f"{request.method} {request.path} was answered with something that is not"
            raise NotUnderstood(f"{what} {type(self._protocol).__name__}: {error!r}") from error
        return False

    async def _read(
        self, request: Request, run: Run, add: Callable[[Said], None], later: bool
    ) -> bool:
        async with self._http.stream(
            request.method,
            request.path,
            json=request.body,
            data=None if request.form is None else dict(request.form),
            headers={"accept": "application/json, text/event-stream", **request.headers},
        ) as answer:
            if answer.status_code not in _OK:
                text = (await answer.aread()).decode("utf-8", "replace")
                self._log("refused", run=run.name, status=answer.status_code, text=text[:500])
                add(Said(unknown=answer.status_code == httpx.codes.NOT_FOUND))
                return False
            self._protocol.read_headers(run, answer.headers)
            self.seen.answered = self.run.id is not None
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                body = json.loads(await answer.aread() or b"null")
                self._log("answer", run=run.name, later=later, body=body)
                if body is not None:
                    add(self._protocol.read_json(run, body))
                return True
            frames, text_of = Frames(), codecs.getincrementaldecoder("utf-8")("replace").decode
            async for piece in answer.aiter_bytes():
                for frame in frames.feed(text_of(piece)):
                    self._log_frame(run, frame, later)
                    add(self._protocol.read(run, frame))
                    if not later and self.seen.end is not None:
                        return True
        self._log("closed", run=run.name, later=later)
        self._forget_what_was_under_way()
        add(self._protocol.closed(run))
        return True

    def _add(self, said: Said) -> None:
        now_s = time.monotonic()
        self.seen.answered = self.run.id is not None
        if said != NOTHING:
            self.seen.unknown = said.unknown
        self.seen.words += said.words
        self.seen.shown.update(said.shown)
        if said.end is not None:
            self.seen.end, self.seen.ended_s = said.end, now_s
        if self.seen.next_s is None and self.killed_s is not None and (said.words or said.end):
            self.seen.next_s = now_s

    def _forget_what_was_under_way(self) -> None:
        # What came on a stream that broke with the server was sent before the kill. Only the stream
        # of another server, behind which one is killed, goes on.
        if self.killed_s is not None and self._asked_s < self.killed_s:
            self.seen.next_s = None

    def _log_frame(self, run: Run, frame: Frame, later: bool) -> None:
        parts = {"event": frame.event, "id": frame.id, "data": frame.data}
        self._log("frame", run=run.name, later=later, **parts)


def client_of(url: str) -> httpx.AsyncClient:
    """Return the HTTP client of all runs. It trusts no proxy of the environment."""
    timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
    limits = httpx.Limits(max_keepalive_connections=0)  # a kept connection may be one to the dead
    return httpx.AsyncClient(base_url=url, timeout=timeout, limits=limits, trust_env=False)
