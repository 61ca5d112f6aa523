"""A client dialect has response headers, a last frame and an error of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from penstock.dialects.base import ClientDialect
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.sse import Frame
from penstock_edge.stream import client as clients
from penstock_edge.stream.phases import End
from penstock_edge.surfaces.v1 import runs
from penstock_edge.views.dialects import DIALECTS, run_view
from penstock_edge.views.framing import WebSocketMessages, split
from support.drive.clients import Client, Stream
from support.fakes.pretend import PretendRun

Events = Callable[..., Stream]
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "x-chat-stream": "v1"}
DONE = b"[DONE]"


@dataclass(slots=True)
class Chat:
    """A toy dialect with a piece for each text, and two frames at the end."""

    def feed(self, event: dict[str, Any]) -> Sequence[Frame]:
        if event["event"]["action"] == "stream":
            return (Frame(orjson.dumps({"text": event["data"]["content"]})),)
        if event["event"]["action"] == "completed":
            return (Frame(b'{"step":"over"}'), Frame(b'{"finish":"stop"}'))
        return ()


def failed(code: str, message: str) -> Frame:
    return Frame(orjson.dumps({"error": {"code": code, "message": message}}))


@pytest.fixture(autouse=True)
def chat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the dialect to the table, as a row would."""
    dialect = ClientDialect(
        Chat,
        omitted={"system.warning": "a comment"},
        headers=HEADERS,
        last=DONE,
        error=failed,
    )
    monkeypatch.setitem(CLIENT_DIALECTS, "chat", dialect)
    monkeypatch.setattr(runs, "DIALECTS", (*DIALECTS, "chat"))


async def test_a_stream_has_the_headers_and_the_last_frame_of_its_dialect(
    events: Events, finished: PretendRun
) -> None:
    async with events(finished, dialect="chat") as stream:
        frames = await stream.rest()
        headers = stream.response.headers
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert headers.get_list("content-type") == [HEADERS["content-type"]]
    assert headers["penstock-run-id"] == finished.run_id
    assert [frame.data for frame in frames[-3:]] == [
        b'{"step":"over"}',
        b'{"finish":"stop"}',
        DONE,
    ]


async def test_a_client_that_was_cut_off_before_the_last_frame_gets_it_once(
    events: Events, finished: PretendRun
) -> None:
    async with events(finished, dialect="chat") as stream:
        whole = await stream.rest()
    for cut, frame in enumerate(whole[:-1], 1):
        async with events(finished, dialect="chat", after=frame.id or "") as stream:
            assert await stream.rest() == whole[cut:]
    async with events(finished, dialect="chat", after=whole[-1].id or "") as stream:
        assert stream.response.status_code == 204


async def test_the_last_frame_follows_a_live_end(events: Events, run: PretendRun) -> None:
    await run.started()
    async with events(run, dialect="chat") as stream:
        await run.text("a")
        assert (await stream.frame()).data == b'{"text":"a"}'
        await run.completed()
        assert [frame.data for frame in await stream.rest()][-1] == DONE


async def test_a_page_has_no_last_frame_because_its_items_are_json(
    edge: Client, finished: PretendRun
) -> None:
    answer = await edge.get(
        f"/v1/runs/{finished.run_id}/events",
        params={"dialect": "chat"},
        headers={"accept": "application/json"},
    )
    page = answer.json()
    assert page["events"][-1] == {"finish": "stop"}
    assert page["next"] is None


async def test_a_stream_that_ends_before_its_run_ends_with_the_dialects_error(
    events: Events, run: PretendRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[clients.Client] = []
    made = clients.Client.read_for

    def remember(self: clients.Client, *arguments: Any) -> None:
        opened.append(self)
        made(self, *arguments)

    monkeypatch.setattr(clients.Client, "read_for", remember)
    await run.started()
    async with events(run, dialect="chat") as stream:
        await run.text("a")
        await stream.frame()
        opened[0].expire()
        frames = await stream.rest()
    assert opened[0].end is End.EXPIRED
    assert orjson.loads(frames[-2].data)["error"]["code"] == "stream_interrupted"
    assert frames[-1].data == DONE


def test_a_web_socket_gets_the_last_frame_as_a_message() -> None:
    framing = WebSocketMessages(cursors=True)
    encoding = run_view("r-1", "chat", framing).encoding()
    [error, done] = encoding.interruption()
    assert split(error + done)[-1] == DONE.decode()
    assert split(framing.last(DONE, "7-2")) == ["[DONE]", '{"cursor":"7-2"}']
