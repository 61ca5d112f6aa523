"""An error in the background ends a stream or is retried, so that no client waits in vain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.types import Message

from penstock.bus import Bus, BusUnavailable, Stored
from penstock.dialects.canonical import CanonicalEncoder
from penstock.web.auth import Identity
from penstock.web.problems import Problem
from penstock_edge.settings import EdgeSettings
from penstock_edge.sources import run_source
from penstock_edge.sources.feed import Feeds
from penstock_edge.sources.locate import start_from_now, start_of_new_run
from penstock_edge.sources.many_runs import ManyRunViews
from penstock_edge.sources.sessions import RunRecords, Session
from penstock_edge.stream import credential
from penstock_edge.stream.client import Client
from penstock_edge.stream.hubs import Hubs
from penstock_edge.stream.open_streams import OpenStreams
from penstock_edge.stream.phases import End
from penstock_edge.stream.responses import waiting
from penstock_edge.stream.responses.waiting import WaitingStream
from penstock_edge.surfaces import session_start
from penstock_edge.surfaces.adk.views import upstream_leg_view
from penstock_edge.surfaces.session_start import UntilIdle
from penstock_edge.views.dialects import run_view
from penstock_edge.views.framing import NAMED_SSE
from penstock_edge.views.items import EventEncoding, Item, type_of
from support.fakes.pretend import PretendRun

SESSION = Session("alice", "a-session", ("assistant",), any_agent=False)


@pytest.fixture
async def hubs(bus: Bus) -> AsyncIterator[Hubs]:
    hubs = Hubs(bus, EdgeSettings(hub_grace_s=0.05))
    yield hubs
    await hubs.close()


async def all_of(client: Client) -> bytes:
    """Return what the client is given until its stream ends."""
    taken = b""
    async with asyncio.timeout(30):
        while (body := await client.take()) is not None:
            taken += body
    return taken


async def test_a_stream_over_many_runs_ends_when_its_events_cannot_be_selected(
    hubs: Hubs, bus: Bus, run: PretendRun
) -> None:
    class Broken(RunRecords):
        async def of(self, run_id: str) -> Any:
            raise RuntimeError("this record breaks the selection")

    feeds = Feeds(bus)
    view = ManyRunViews(bus, feeds, Broken(bus)).of_types(["*.*"], frozenset({"alice"}), NAMED_SSE)
    client = await hubs.join(view, await start_from_now(bus))
    await run.started()
    await all_of(client)
    assert client.end is End.FAILED
    client.leave()
    await hubs.close()
    await feeds.close()


async def test_a_message_that_breaks_the_encoder_is_a_notice_and_the_next_ones_follow(
    hubs: Hubs, bus: Bus, run: PretendRun
) -> None:
    class Broken(EventEncoding):
        def feed(self, stored: Stored) -> Item:
            if type_of(stored) == "llm.stream":
                raise AttributeError("'NoneType' object has no attribute 'get'")
            return super().feed(stored)

    view = run_view(run.run_id, "canonical")
    broken = replace(view, encoding=lambda: Broken(CanonicalEncoder(), NAMED_SSE.event))
    client = await hubs.join(broken, await start_of_new_run(bus, 0))
    await run.started()
    await run.text("Hello")
    await run.completed()
    taken = await all_of(client)
    assert b"unreadable_event" in taken
    assert b"lifecycle.completed" in taken
    client.leave()


async def test_a_legs_stream_ends_in_an_error_when_the_end_of_its_run_cannot_be_found(
    hubs: Hubs, bus: Bus, run: PretendRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*where: Any) -> Stored | None:
        raise BusUnavailable("refused")

    monkeypatch.setattr(run_source, "tail", refused)
    start = await start_of_new_run(bus, 0, frames=True)
    client = await hubs.join(upstream_leg_view(run.run_id, 1, 300), start)
    await run.started()
    await run.raw("open", {})
    await run.raw("bytes", b"data: 1\n\n")
    await run.completed()
    assert b"The stream was interrupted" in await all_of(client)
    client.leave()


async def test_a_stream_ends_when_its_credential_cannot_be_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*arguments: Any) -> None:
        raise RuntimeError("the token's record cannot be read")

    monkeypatch.setattr(credential, "wait_until_credential_ends", broken)
    monkeypatch.setattr(
        credential,
        "identity_of",
        lambda scope: cast(Identity, SimpleNamespace(expires_at=1.0, token_id="t")),
    )
    ended = asyncio.Event()
    with credential.while_valid({}, ended.set):
        async with asyncio.timeout(30):
            await ended.wait()


async def test_a_stream_until_idle_ends_although_a_record_could_not_be_read_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[int | None] = [None, 7]
    ended = asyncio.Event()

    async def idle_since(bus: Bus, session: Session) -> int | None:
        answer = answers.pop(0)
        if answer is None:
            raise ValueError("a record that cannot be read")
        return answer

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await ended.wait()

    def end_after(sequence: int) -> None:
        assert sequence == 7
        ended.set()

    monkeypatch.setattr(session_start, "idle_since", idle_since)
    monkeypatch.setattr(session_start, "CHECK_S", 0.01)
    client = cast(Client, SimpleNamespace(end_after=end_after, when_left=lambda release: None))
    async with asyncio.timeout(30):
        await UntilIdle(stream, client, cast(Bus, None), SESSION)(
            {}, cast(Any, None), cast(Any, None)
        )


class Begun:
    """A stream that has begun, which records whether it is discarded."""

    def __init__(self) -> None:
        self.was_discarded = False

    def discard(self) -> None:
        self.was_discarded = True


class Sent:
    """An ASGI `send` that keeps the messages of a response."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def waiting_for(begun: Any, monkeypatch: pytest.MonkeyPatch, unsubscribe: Any) -> WaitingStream:
    async def subscribe(subject: str, handle: Any) -> Any:
        return SimpleNamespace(unsubscribe=unsubscribe)

    monkeypatch.setattr(waiting, "while_valid", lambda scope, end: nullcontext())
    bus = cast(Bus, SimpleNamespace(subscribe=subscribe))
    return WaitingStream(bus, "a.subject", begun, 15, OpenStreams(10, 0))


async def test_a_stream_that_begins_as_its_request_is_cancelled_leaves_its_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Begun()

    async def begun() -> Any:
        return stream

    async def cancelled() -> None:
        raise asyncio.CancelledError

    response = waiting_for(begun, monkeypatch, cancelled)
    with pytest.raises(asyncio.CancelledError):
        await response({"method": "GET"}, never, Sent())
    assert stream.was_discarded


async def test_a_stream_that_cannot_begin_any_more_ends_cleanly_after_its_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def gone() -> Any:
        raise Problem(410, "the events are no longer kept")

    async def unsubscribe() -> None:
        return

    sent = Sent()
    await waiting_for(gone, monkeypatch, unsubscribe)({"method": "GET"}, never, sent)
    assert [message["type"] for message in sent.messages] == [
        "http.response.start",
        "http.response.body",
    ]
