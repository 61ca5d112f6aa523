"""The actions of users: start runs, follow them over any running edge, decide and cancel.

A client distinguishes a lost answer from a refusal. It repeats every request that is safe to
repeat. It records what no client must meet, such as a 4xx for an existing run or an event without
an id.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from support.chaos import wire
from support.chaos.checker import ENDS, type_of
from support.chaos.evidence import Answer, View
from support.chaos.plans import Plan

AGAIN_S = 0.25
SILENCE_S = 20.0  # a connection without a byte for this long is closed
PATIENCE_S = 120.0  # for one request with all its attempts
_MANY = {"approve": "reject", "reject": "approve"}


class _Stale(Exception):
    """The server closed a kept connection while the request was sent."""


@asynccontextmanager
async def _streamed(
    http: httpx.AsyncClient, url: str, headers: Mapping[str, str]
) -> AsyncIterator[httpx.Response]:
    """Ask for a stream. Raises _Stale, or HTTPError."""
    steps: list[str] = []

    async def trace(step: str, _: Any) -> None:
        steps.append(step)

    request = http.build_request("GET", url, headers=headers, extensions={"trace": trace})
    try:
        answer = await http.send(request, stream=True)
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
        if "connection.connect_tcp.started" in steps:
            raise
        raise _Stale from None
    try:
        yield answer
    finally:
        await answer.aclose()


class Address(Protocol):
    """Where a service answers."""

    @property
    def url(self) -> str:
        """The URL without a path."""
        ...


@dataclass(slots=True)
class Story:
    """One run as its clients see it. `arrivals` has the time when any client first saw an event.

    `trouble` has a line for each answer with 5xx, and for each request or stream that broke.
    `stale` counts the streams asked for over a kept connection that the server closed just then. A
    client may repeat such a GET (RFC 9112, section 9.3.1), and browsers do.
    """

    plan: Plan
    edges: Sequence[Address]
    approvals: Sequence[Address]
    http: httpx.AsyncClient
    run_id: str = ""
    views: list[View] = field(default_factory=list)
    decisions: list[Answer] = field(default_factory=list)
    cancels: list[Answer] = field(default_factory=list)
    other_ids: set[str] = field(default_factory=set)
    arrivals: list[tuple[float, str]] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    stale: int = 0
    decides_after: asyncio.Event | None = None  # None: decides at once
    began: float = 0.0  # by the loop's clock
    ended: float = math.inf
    _seen: int = 0  # the highest sequence that any client has seen
    _asked: dict[str, Any] | None = None  # the data of approval.requested
    _acting: set[asyncio.Task[None]] = field(default_factory=set)

    async def live(self) -> None:
        """Do all that the plan asks for, from the start to the expected end."""
        clock = asyncio.get_running_loop().time
        chance = random.Random(self.plan.number)
        self.began = clock()
        self.run_id = await self._start(chance.randrange(len(self.edges)))
        if self.plan.started_twice:
            self.other_ids.add(await self._start(chance.randrange(len(self.edges))))
        if self.plan.cancel_after == 0:
            self._act(self._cancel)
        self.views = [View() for _ in range(self.plan.followers)]
        await asyncio.gather(
            *(self._follow(view, number) for number, view in enumerate(self.views))
        )
        await asyncio.gather(*self._acting)
        self.ended = clock()

    async def _start(self, first: int) -> str:
        body = {
            "agent": self.plan.agent_id,
            "message": self.plan.message,
            "session_id": self.plan.session_id,
            "idempotency_key": f"{self.plan.session_id}/{self.plan.mark}",
        }
        answer = await self._insist(self.edges, first, "/v1/runs", body)
        if answer.status_code not in (200, 202):
            raise AssertionError(f"{self.plan.mark}: {answer.status_code} {answer.text}")
        return str(answer.json()["run_id"])

    # Actions that follow a run

    async def _follow(self, view: View, number: int) -> None:
        edge = self.plan.number + number
        while not view.finished:
            edge += 1
            try:
                await self._connect(view, self.edges[edge % len(self.edges)].url)
            except _Stale:
                self.stale += 1
            except (httpx.HTTPError, TimeoutError) as error:
                self.trouble.append(f"the stream of {self.run_id}: {error!r}")
                await asyncio.sleep(AGAIN_S)

    async def _connect(self, view: View, url: str) -> None:
        headers = {"last-event-id": view.cursors[-1]} if view.cursors else {}
        path = f"/v1/runs/{self.run_id}/events"
        async with _streamed(self.http, f"{url}{path}", headers) as answer:
            if answer.status_code >= 500:
                self.trouble.append(f"the stream of {self.run_id}: {answer.status_code}")
                await asyncio.sleep(AGAIN_S)
                return
            if answer.status_code == 410:  # the stream has lost the event that the cursor names
                view.begins_anew()
                await asyncio.sleep(AGAIN_S)
                return
            if answer.status_code != 200:
                view.odd.append(f"{answer.status_code} {(await answer.aread())!r}")
                view.finished = True
                return
            view.connections += 1
            leaves_at = math.inf
            if self.plan.leave_after is not None:
                leaves_at = len(view.seen) + self.plan.leave_after
            rest = b""
            chunks = answer.aiter_raw()
            while True:
                try:
                    chunk = await asyncio.wait_for(anext(chunks), SILENCE_S)
                except StopAsyncIteration:
                    return
                rest += chunk
                whole, blank, rest = rest.rpartition(b"\n\n")
                for frame in wire.frames(whole + blank):
                    self._saw(view, frame)
                if view.finished or len(view.seen) >= leaves_at:
                    return

    def _saw(self, view: View, frame: wire.Sse) -> None:
        if frame.id is None:
            view.odd.append(f"an event without an id: {frame.data}")
            return
        event = json.loads(frame.data)
        view.seen.append(event)
        view.cursors.append(frame.id)
        name = type_of(event)
        if event["sequence"] > self._seen:
            self._seen = event["sequence"]
            self.arrivals.append((asyncio.get_running_loop().time(), name))
            self._react(event, name)
        waits = name == "lifecycle.paused" and self.plan.decision == "none"
        # Events of automations may follow a pause, which remains the last event of the run itself.
        view.finished = view.finished or name in ENDS or waits

    def _react(self, event: dict[str, Any], name: str) -> None:
        if name == "approval.requested":
            self._asked = event["data"]
        elif name == "lifecycle.paused" and self.plan.decision != "none":
            self._act(self._decide)
        if self._seen == self.plan.cancel_after:
            self._act(self._cancel)

    # Actions that change a run

    def _act(self, action: Callable[[], Awaitable[None]]) -> None:
        async def acting() -> None:
            await action()

        self._acting.add(asyncio.create_task(acting()))

    async def _decide(self) -> None:
        assert self.plan.decision is not None
        if self.decides_after is not None:
            await self.decides_after.wait()
        first = self._one_decision(self.plan.decision, self.plan.number)
        if self.plan.duel:
            other = self._one_decision(_MANY[self.plan.decision], self.plan.number + 1)
            await asyncio.gather(first, other)
        else:
            await first

    async def _one_decision(self, decision: str, first: int) -> None:
        assert self._asked is not None
        items = [
            {"item_id": item["item_id"], "decision": decision} for item in self._asked["items"]
        ]
        path = f"/v1/approvals/{self._asked['approval_id']}/decision"
        lost: list[Answer] = []
        answer = await self._insist(
            self.approvals,
            first,
            path,
            {"items": items, "digest": self._asked["digest"]},
            lambda: lost.append(Answer(decision, None)),
        )
        self.decisions += [*lost, Answer(decision, answer.status_code)]

    async def _cancel(self) -> None:
        lost: list[Answer] = []
        answer = await self._insist(
            self.edges,
            self.plan.number,
            f"/v1/runs/{self.run_id}/cancel",
            None,
            lambda: lost.append(Answer("cancel", None)),
        )
        self.cancels += [*lost, Answer("cancel", answer.status_code)]

    async def _insist(
        self,
        addresses: Sequence[Address],
        first: int,
        path: str,
        body: Any,
        on_lost: Callable[[], None] = lambda: None,
    ) -> httpx.Response:
        """POST to the targets in turn until one gives a final answer."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    answer = await self.http.post(
                        f"{addresses[first % len(addresses)].url}{path}", json=body
                    )
                    if answer.status_code < 500:
                        return answer
                    self.trouble.append(f"POST {path}: {answer.status_code} {answer.text}")
                    on_lost()
                except httpx.ConnectError as error:
                    self.trouble.append(f"POST {path}: {error!r}")  # the request was not sent
                except httpx.HTTPError as error:
                    self.trouble.append(f"POST {path}: {error!r}")
                    on_lost()
                first += 1
                await asyncio.sleep(AGAIN_S)
