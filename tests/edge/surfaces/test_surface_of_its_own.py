"""A surface of its own: a request starts a run, an answer decides a pause, a form writes the leg.

The surface is the smallest one that streams legs (docs/add-a-surface.md, decision 0318). Its
protocol has no cursors, a last frame that is no JSON, and errors of its own shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import ASGIApp

from penstock import sse
from penstock.bus import Bus
from penstock.bus.records.approvals import Decided, DecideRequest
from penstock.dialects.base import type_of
from penstock.runs.start import Start
from penstock.web.auth import identity_of, require
from penstock.web.bodies import read_model
from penstock.web.operation import TEXT, Operation, serves
from penstock.web.problems import ErrorShape, Problem, schema_of
from penstock_edge import service
from penstock_edge.edge import Edge
from penstock_edge.runs.pauses import pause_of
from penstock_edge.runs.records import run_of
from penstock_edge.stream import client as clients
from penstock_edge.surfaces.agents import agent_by_id
from penstock_edge.surfaces.legs import Answer, Leg, Reply, decide, first_leg, next_leg, replay
from penstock_edge.surfaces.parameters import CURSOR, FOLLOWED, RUN_ID
from penstock_edge.surfaces.query import cursor_of
from penstock_edge.surfaces.surface import Surface
from penstock_edge.views.encoded_leg import LegForm
from support.drive.clients import Client, MakeEdge, Stream
from support.fakes.pretend import PretendApprovals, PretendRun

DONE = b"[DONE]"
SHAPE = ErrorShape("chat", "application/json", schema_of(error=TEXT), lambda p: {"error": p.detail})


class ChatRequest(BaseModel):
    """A message, or the answers to a pause of the run `id`: item ids with yes or no."""

    model: str = "assistant"
    message: str = ""
    id: str | None = None
    answers: dict[str, bool] = {}


@dataclass(slots=True)
class ChatEncoder:
    """Writes texts and questions."""

    def feed(self, event: dict[str, Any]) -> Sequence[sse.Frame]:
        data = event["data"]
        match type_of(event):
            case "llm.stream":
                return (sse.Frame(orjson.dumps({"text": data["content"]})),)
            case "approval.requested":
                asks = [item["item_id"] for item in data["items"]]
                return (sse.Frame(orjson.dumps({"asks": asks})),)
        return ()


FORM = LegForm(
    (),
    "chat",
    ChatEncoder,
    lambda frame, cursor: sse.encode(frame.data, id=cursor),
    lambda encoder: [sse.encode(b'{"error":"interrupted"}'), sse.encode(DONE)],
    last=DONE,
    headers={"x-chat": "1"},
)


class Chat:
    """Has the handler of /chat."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    @serves(
        Operation(
            method="POST",
            path="/chat",
            summary="Start a run, or answer a pause, and stream the leg",
            tag="chat",
            answers=FOLLOWED,
            scopes=(),
            any_scope=("start", "decide"),
            errors=SHAPE,
            body=ChatRequest,
            example={"message": "Hello"},
            refusals=(404, 409),
        )
    )
    async def post(self, request: Request) -> ASGIApp:
        asked = await read_model(request, ChatRequest)
        leg = await (
            self._start(request, asked) if asked.id is None else self._answer(request, asked)
        )
        return await self._edge.stream(leg.view(FORM), leg.position, identity_of(request))

    @serves(
        Operation(
            method="GET",
            path="/chat/{run_id}",
            summary="A run up to the pause that waits now, or from after a cursor",
            tag="chat",
            answers=FOLLOWED,
            scopes=("read",),
            errors=SHAPE,
            parameters=(RUN_ID, *CURSOR),
        )
    )
    async def get(self, request: Request) -> ASGIApp:
        edge, who = self._edge, identity_of(request)
        run = await run_of(edge.bus, who, request.path_params["run_id"])
        return await edge.stream(*await replay(edge, run, FORM, cursor_of(request)), who)

    async def _start(self, request: Request, asked: ChatRequest) -> Leg:
        who = identity_of(request)
        require(who, "start")
        agent = agent_by_id(self._edge.config, asked.model)
        start = Start(agent, asked.message, None, who.run_user(who.user_id))
        return (await first_leg(self._edge, start))[1]

    async def _answer(self, request: Request, asked: ChatRequest) -> Leg:
        edge, who = self._edge, identity_of(request)
        require(who, "decide")
        run = await run_of(edge.bus, who, asked.id or "", Problem(404, "no such chat"))
        pause = await pause_of(edge.bus, who.user_id, run.run_id, lambda pause: True)
        items = [
            Decided(item_id=item_id, decision="approve" if yes else "reject")
            for item_id, yes in asked.answers.items()
        ]
        reply = Reply([Answer(pause.approval, items)])
        leg = await next_leg(edge, reply)
        await decide(edge, who, "api", reply, user_id=who.user_id)
        return leg


class ChatSurface(Surface):
    """The surface of this module."""

    handlers = (Chat,)


@pytest.fixture
async def edge(make_edge: MakeEdge, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Return a client of an edge that serves this surface, too, as one further row."""
    monkeypatch.setattr(service, "SURFACES", (*service.SURFACES, ChatSurface))
    return await make_edge()


@pytest.fixture
async def approvals(bus: Bus) -> PretendApprovals:
    approvals = PretendApprovals(bus)
    await approvals.start()
    return approvals


def post(edge: Client, **body: Any) -> Stream:
    return Stream(edge, "POST", "/chat", json=body)


async def said(stream: Stream) -> list[bytes]:
    return [frame.data for frame in await stream.rest()]


async def test_a_request_starts_a_run_and_streams_it_to_the_last_frame(
    edge: Client, bus: Bus
) -> None:
    async with post(edge, message="Hello") as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.text("Hi", " there")
        await run.completed()
        assert await said(stream) == [b'{"text":"Hi"}', b'{"text":" there"}', DONE]
    assert stream.response.headers["x-chat"] == "1"


async def test_a_leg_ends_with_the_pause_and_the_answer_streams_the_next_leg_alone(
    edge: Client, bus: Bus, approvals: PretendApprovals
) -> None:
    async with post(edge, message="Delete it") as stream:
        run = PretendRun(bus, stream.run_id)
        await run.record()
        await run.started()
        await run.text("Wait.")
        asked = {"item_id": "C", "kind": "confirmation"}
        approval_id = await approvals.request(
            run.run_id, "assistant", run.session_id, {"C": "confirmation"}
        )
        await run.say("approval.requested", approval_id=approval_id, items=[asked])
        await run.say("lifecycle.paused", reason="approval_required", approval_id=approval_id)
        assert await said(stream) == [b'{"text":"Wait."}', b'{"asks":["C"]}', DONE]

    async def go_on(_: DecideRequest) -> None:
        run.leg_number = 2
        await run.say("lifecycle.resumed", approval_id=approval_id)
        await run.text("Deleted.")
        await run.completed()

    approvals.on_decision = go_on
    async with post(edge, id=run.run_id, answers={"C": True}) as stream:
        assert stream.run_id == run.run_id
        assert await said(stream) == [b'{"text":"Deleted."}', DONE]
    [decision] = approvals.decisions
    assert [(item.item_id, item.decision) for item in decision.items] == [("C", "approve")]


async def test_a_replay_ends_with_the_pause_that_waits_now_and_a_cursor_gets_the_rest(
    edge: Client, bus: Bus, approvals: PretendApprovals
) -> None:
    async def frames(after: str | None = None) -> list[sse.Frame]:
        query = {} if after is None else {"after": after}
        async with Stream(edge, "GET", f"/chat/{run.run_id}", params=query) as stream:
            assert stream.response.status_code in (200, 204)
            return await stream.rest()

    run = PretendRun(bus)
    await run.record()
    await run.started()
    for leg in (1, 2):
        run.leg_number = leg
        if leg > 1:
            await run.say("lifecycle.resumed")
        await run.text(f"leg {leg}")
        approval_id = await approvals.request(run.run_id, "assistant", run.session_id, {})
        await run.say("lifecycle.paused", reason="approval_required", approval_id=approval_id)
    whole = await frames()
    assert [each.data for each in whole] == [b'{"text":"leg 1"}', b'{"text":"leg 2"}', DONE]
    for at, frame in enumerate(whole, 1):
        assert await frames(frame.id) == whole[at:]
    await run.say("lifecycle.cancelled", reason="user_stop", confirmed=True)
    whole = await frames()
    assert [each.data for each in whole] == [b'{"text":"leg 1"}', b'{"text":"leg 2"}', DONE]
    assert await frames(whole[-1].id) == []


async def test_a_leg_that_is_cut_off_ends_with_the_surfaces_error(
    edge: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[clients.Client] = []
    made = clients.Client.read_for

    def remember(self: clients.Client, *arguments: Any) -> None:
        opened.append(self)
        made(self, *arguments)

    monkeypatch.setattr(clients.Client, "read_for", remember)
    async with post(edge, message="Hello") as stream:
        run = PretendRun(bus, stream.run_id)
        await run.started()
        await run.text("Hi")
        await stream.frame()
        opened[0].expire()
        assert await said(stream) == [b'{"error":"interrupted"}', DONE]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"model": "nobody", "message": "Hello"}, 404, "nobody"),
        ({"id": "r1", "answers": {}}, 404, "no such chat"),
        ({"answers": 1}, 422, "answers"),
    ],
)
async def test_a_refusal_has_the_surfaces_shape(
    edge: Client, body: dict[str, Any], status: int, text: str
) -> None:
    answer = await edge.post("/chat", json=body)
    assert answer.status_code == status
    assert text in answer.json()["error"]
    assert answer.json().keys() == {"error"}
