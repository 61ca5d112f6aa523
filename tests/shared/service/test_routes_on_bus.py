"""What the bus raises in a handler is an answer that tells the client whether to try again."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import BusUnavailable, ObjectGone
from penstock.bus.state.bucket_index import StillReading
from penstock.service import routes_on_bus
from penstock.web.operation import Answer, Operation, serves
from penstock.web.problems import Problem


class Broken:
    """A handler in which the bus fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    @serves(
        Operation(
            method="GET",
            path="/x",
            summary="s",
            tag="t",
            answers={200: Answer("-")},
            scopes=(),
        )
    )
    async def handle(self, request: Request) -> Response:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        (BusUnavailable("no server"), 503, "the bus does not answer: no server; try again"),
        (StillReading("it is read"), 503, "it is read"),
        (ObjectGone("the payload has expired"), 410, "the payload has expired"),
        (LookupError("the record is broken"), 500, "the record is broken"),
    ],
)
async def test_an_error_of_the_bus_becomes_a_problem(
    error: Exception, status: int, detail: str
) -> None:
    [route] = routes_on_bus(Broken(error), statuses={LookupError: 500})
    with pytest.raises(Problem) as refused:
        await route.handler(Request({"type": "http"}))
    assert (refused.value.status, refused.value.detail) == (status, detail)


async def test_a_mistake_in_a_handler_is_no_problem_of_the_bus() -> None:
    [route] = routes_on_bus(Broken(LookupError("a bug")))
    with pytest.raises(LookupError):
        await route.handler(Request({"type": "http"}))
