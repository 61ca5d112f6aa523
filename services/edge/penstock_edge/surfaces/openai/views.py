"""How OpenAI's clients read a leg: as the stream of a response, or as one object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import uuid4

import orjson
from starlette.responses import Response

from penstock import sse
from penstock.bus import Stored
from penstock.dialects.base import frame
from penstock.dialects.openai import DONE, ChatEncoder, ResponsesEncoder, failure
from penstock.sse import Frame
from penstock.web.problems import Problem
from penstock_edge.stream.responses.single_body import Json
from penstock_edge.surfaces.openai.ids import ResponseId
from penstock_edge.views.agui import CUT
from penstock_edge.views.encoded_leg import LegForm
from penstock_edge.views.framing import NAMED_SSE, PageItems, Sse
from penstock_edge.views.upstream_frames import INTERRUPTED
from penstock_edge.views.view import Delivery

LookUp = Callable[[ChatEncoder, Stored], Awaitable[None]]
RUNNING: Final = frozenset({"queued", "in_progress"})


def stream_form(response: ResponseId, after: int = -1) -> LegForm[ResponsesEncoder]:
    """Write the frames whose `sequence_number` is greater than `after`. A client knows an
    interrupted stream by its end without `response.completed`, and continues it with a GET."""

    def render(made: Frame, cursor: str) -> bytes:
        return NAMED_SSE.event(made, cursor) if int(made.id or 0) > after else b""

    return LegForm(
        (f"after {after}", *_key(response)),
        "openai",
        partial(ResponsesEncoder, str(response), response.leg),
        render,
        lambda encoder: [],
        NAMED_SSE,
        delivery=Delivery.RESUMABLE,
    )


@dataclass(slots=True)
class WholeResponse:
    """Writes the response when its leg has ended; `encoder` knows it before, too."""

    encoder: ResponsesEncoder

    def feed(self, event: dict[str, Any]) -> Sequence[Frame]:
        frames = self.encoder.feed(event)
        is_over = frames and self.encoder.status not in RUNNING
        return (frame(self.encoder.response()),) if is_over else ()


def object_form(response: ResponseId, encoder: ResponsesEncoder | None = None) -> LegForm[Any]:
    """Write the whole response. With `encoder`, which has read nothing, for one page alone."""

    def whole() -> WholeResponse:
        return WholeResponse(encoder or ResponsesEncoder(str(response), response.leg))

    return LegForm(
        ("whole", *_key(response)),
        "openai",
        whole,
        lambda made, cursor: made.data,
        lambda each: [orjson.dumps(each.encoder.response())],
        PageItems(),
    )


def chat_form(
    response: ResponseId, encoder: Callable[[ResponsesEncoder], ChatEncoder], look_up: LookUp
) -> LegForm[ChatEncoder]:
    """`look_up` gives the encoder the links of a pause, which are for this request's caller."""
    streaming = encoder(ResponsesEncoder()).streaming

    def interrupted(encoder: ChatEncoder) -> list[bytes]:
        error = failure(CUT, INTERRUPTED).data
        return [sse.encode(error), sse.encode(DONE)] if streaming else [error]

    return LegForm(
        ("chat", uuid4().hex, *_key(response)),
        "openai",
        lambda: encoder(ResponsesEncoder(str(response), response.leg)),
        lambda made, cursor: sse.encode(made.data) if streaming else made.data,
        interrupted,
        Sse(named=False) if streaming else PageItems(),
        last=DONE if streaming else None,
        look_up=look_up,
    )


class Completion(Json):
    """The completion as one object; the error of a run that has failed is a 502."""

    def response(self) -> Response:
        response = Json.response(self)
        if "error" in (body := orjson.loads(response.body)):
            raise Problem(502, body["error"]["message"], code=body["error"]["code"])
        return response


def _key(response: ResponseId) -> tuple[str, ...]:
    return (f"after pause {response.after}", *response.answered)
