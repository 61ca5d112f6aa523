"""How OpenAI's clients read a leg: as the stream of a response, or as one object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from uuid import uuid4

import orjson
from starlette.responses import Response

from penstock import sse
from penstock.bus import Stored
from penstock.bus.subjects import run_id_of
from penstock.dialects.base import frame
from penstock.dialects.openai import DONE, ChatEncoder, ObjectEncoder, ResponsesEncoder, failure
from penstock.sse import Frame
from penstock.web.problems import Problem
from penstock_edge.stream.responses.single_body import Json
from penstock_edge.surfaces.legs import LegId
from penstock_edge.surfaces.openai.request import ChatRequest, ResponseId
from penstock_edge.views.agui import CUT
from penstock_edge.views.encoded_leg import LegForm, WholeLeg
from penstock_edge.views.framing import NAMED_SSE, PageItems, Sse
from penstock_edge.views.upstream_frames import INTERRUPTED
from penstock_edge.views.view import Delivery

LookUp = Callable[[ChatEncoder, Stored], Awaitable[None]]


async def follow(encoder: ResponsesEncoder, paused: Stored, *, is_workflow: bool) -> None:
    """Tell the encoder which response follows the pause, also if another person decides."""
    leg = LegId(encoder.at_leg + 1, paused.sequence if is_workflow else 0)
    encoder.following = str(ResponseId(run_id_of(paused.subject), leg))


def stream_form(
    response: ResponseId, after: int = -1, *, is_workflow: bool
) -> LegForm[ResponsesEncoder]:
    """Write the frames whose `sequence_number` is greater than `after`. A client knows an
    interrupted stream by its end without `response.completed`, and continues it with a GET."""

    def render(made: Frame, cursor: str) -> bytes:
        return NAMED_SSE.event(made, cursor) if int(made.id or 0) > after else b""

    return LegForm(
        (f"after {after}", str(response)),
        "openai",
        partial(ResponsesEncoder, str(response), response.leg.number),
        NAMED_SSE.event if after < 0 else render,
        lambda encoder: [],
        NAMED_SSE,
        delivery=Delivery.RESUMABLE,
        look_up=partial(follow, is_workflow=is_workflow),
    )


def object_form(response: ResponseId, *, is_workflow: bool) -> LegForm[WholeLeg[ObjectEncoder]]:
    return LegForm.of_object(
        ("whole", str(response)),
        "openai",
        partial(ObjectEncoder, str(response), response.leg.number),
        lambda encoder: frame(encoder.response()).data,
        partial(follow, is_workflow=is_workflow),
    )


def chat_form(response: ResponseId, asked: ChatRequest, look_up: LookUp) -> LegForm[ChatEncoder]:
    """`look_up` gives the encoder the links of a pause, which are for this request's caller."""
    streams = bool(asked.stream)

    def interrupted(encoder: ChatEncoder) -> list[bytes]:
        error = failure(CUT, INTERRUPTED).data
        return [sse.encode(error), sse.encode(DONE)] if streams else [error]

    return LegForm(
        ("chat", uuid4().hex),
        "openai",
        partial(
            ChatEncoder,
            str(response),
            response.leg.number,
            streaming=streams,
            include_usage=bool((asked.stream_options or {}).get("include_usage")),
        ),
        lambda made, cursor: sse.encode(made.data) if streams else made.data,
        interrupted,
        Sse(named=False) if streams else PageItems(),
        last=DONE if streams else None,
        look_up=look_up,
    )


class Completion(Json):
    """The completion as one object; the error of a run that has failed is a 502."""

    def response(self) -> Response:
        response = Json.response(self)
        if "error" in (body := orjson.loads(response.body)):
            raise Problem(502, body["error"]["message"], code=body["error"]["code"])
        return response
