"""Schemathesis tests our OpenAPI: no request gets a 5xx or a response that is not declared."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from typing import Any, Final

import httpx
import orjson
import pytest
import pytest_asyncio
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.web.operation import JSON, SSE
from penstock_cli.openapi import document
from support.drive.access import ROWS, Row
from support.drive.secured import Secured, bearer, secured
from support.real.nats import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Requests for each operation: for one with a body, for one without a body, and for each in the long
# form, which asks for every operation with authentication and without.
WITH_BODY: Final = 3
WITHOUT_BODY: Final = 2
MANY: Final = 50
EIGHTH: Final = 8
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
# Known values of parameters. Nearly all values that Schemathesis makes up are unknown, and requests
# with them would be refused early.
KNOWN: Final[dict[str, Any]] = {
    "agent": "assistant",
    "appName": "assistant",
    "userId": "alice",
    "user_id": "alice",
    "topologyId": 123,
    "subjects": "llm.*",
    "after": "1-0",
    "Last-Event-ID": "3-0",
    "since": "2026-01-31T12:00:00Z",
}
USER: Final = bearer(scope="start read raw decide automate workflow erase")
ANYTHING: Final = bearer(scope="start read raw decide automate workflow erase administer")
CALLERS: Final[tuple[dict[str, str], ...]] = (
    USER,
    USER,
    USER,
    USER,
    bearer("bob"),
    {"authorization": "Bearer nobody"},
    {"cookie": "__Host-penstock_token=nobody"},
    {},
)
MOSTLY: Final = st.sampled_from((True, True, True, False))
ACCEPTED: Final = ("*/*", JSON, SSE)
# The test leaves out this route, because Schemathesis opens no WebSockets.
SOCKET: Final = "/v1/sessions/{session_id}/events/ws"

Operation = APIOperation[Any, Any, Any, Any]
Asked = Case[Operation]


@cache
def operations() -> list[Operation]:
    schema = schemathesis.openapi.from_dict(document())
    # CALLERS supplies the credentials. Made-up credentials would all be refused.
    schema.config.generation.update(with_security_parameters=False)
    found = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
    return [operation for operation in found if operation.path != SOCKET]


@cache
def cases(operation: Operation) -> st.SearchStrategy[Asked]:
    """Make requests that fit the document, and invalid ones if the operation has any input."""
    fitting = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    if not any(operation.iter_parameters()) and not operation.body:
        return fitting
    return fitting | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)


def told(method: str, path: str) -> tuple[str, str]:
    """Return the route with its ids' names removed, so that routes can be compared."""
    return method.upper(), re.sub(r"{\w+}", "{}", path)


def row_of(operation: Operation) -> Row:
    asked = told(operation.method, operation.path)
    return next(row for row in ROWS if told(row.method, row.route) == asked)


def body_of(operation: Operation, names: Mapping[str, str]) -> Any:
    """Return the body of a request that is served."""
    good = orjson.dumps(row_of(operation).body).decode()
    for name, value in names.items():
        good = good.replace(f"{{{name}}}", value)
    return orjson.loads(good)


def with_known(made: Any, known: Mapping[str, Any], data: st.DataObject) -> Any:
    """Replace most values by known ones, where a field's name is known."""
    if not isinstance(made, Mapping):
        return made
    return {
        name: known[name] if name in known and data.draw(MOSTLY) else value
        for name, value in made.items()
    }


def nearly_right(made: Any, good: Any, data: st.DataObject) -> Any:
    """Return the body of a request that is served, with up to two made-up fields."""
    if not isinstance(made, Mapping) or not isinstance(good, Mapping) or not data.draw(MOSTLY):
        return made
    fields = sorted(made, key=str)
    chosen = data.draw(st.sets(st.sampled_from(fields), max_size=2)) if fields else set()
    return {**good, **{name: made[name] for name in chosen}}


async def ask(http: httpx.AsyncClient, case: Asked, headers: dict[str, str]) -> Response:
    """Send the request; of an event stream, read the head only, because the stream may not end."""
    kwargs = case.as_transport_kwargs(base_url=str(http.base_url), headers=headers)
    prepared = requests.Request(**kwargs).prepare()
    body = prepared.body or b""
    assert isinstance(body, str | bytes)
    request = httpx.Request(
        case.method,
        str(prepared.url),
        headers=[
            (name.encode(), value.encode("latin-1") if isinstance(value, str) else value)
            for name, value in prepared.headers.items()
        ],
        content=body,
    )
    answer = await http.send(request, stream=True)
    try:
        endless = answer.headers.get("content-type", "").startswith(SSE)
        content = b"" if endless else await answer.aread()
    finally:
        await answer.aclose()
    told = {name: answer.headers.get_list(name) for name in answer.headers}
    return Response(answer.status_code, told, content, prepared, 0.0, verify=False)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("schemathesis"), name="nats of schemathesis")
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["asked", "not asked"])
async def penstock(nats: NatsServer, request: pytest.FixtureRequest) -> AsyncIterator[Secured]:
    """Run Penstock once with authentication and once without."""
    open_to_all = request.param != "asked"
    async with secured(nats.url, ALLOW_UNAUTHENTICATED_SSE=open_to_all) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def names(penstock: Secured, operation: Operation) -> dict[str, str]:
    """Return the values for the ids in paths and bodies."""
    row = row_of(operation)
    asked = (await penstock.http.get("/v1/csrf")).status_code == 401
    known = await penstock.given(row, tokens=asked)
    known |= {"agent": known["id"], "thread_id": known["session_id"]}
    return {"token_id": "none"} | known


async def check(
    penstock: Secured, operation: Operation, names: dict[str, str], data: st.DataObject
) -> None:
    """Send one made-up request, and check its answer."""
    case = data.draw(cases(operation))
    good = body_of(operation, names)
    case.path_parameters = with_known(case.path_parameters, names, data)
    case.query = with_known(case.query, KNOWN, data)
    case.headers = with_known(case.headers, KNOWN, data)
    case.body = nearly_right(with_known(case.body, KNOWN, data), good, data)
    headers = {
        **data.draw(st.sampled_from(CALLERS)),
        "accept": data.draw(st.sampled_from(ACCEPTED)),
    }
    case.validate_response(await ask(penstock.http, case, headers), checks=CHECKS)


def each(*chosen: Operation) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("operation", chosen, ids=lambda each: each.label)


@pytest.mark.parametrize("penstock", ["asked"], indirect=True, scope="module")
@each(*(operation for operation in operations() if operation.body))
@settings(max_examples=WITH_BODY, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_whatever_is_sent_the_answer_is_declared_and_no_5xx(
    penstock: Secured, operation: Operation, names: dict[str, str], data: st.DataObject
) -> None:
    await check(penstock, operation, names, data)


@pytest.mark.parametrize("penstock", ["asked"], indirect=True, scope="module")
@each(*(operation for operation in operations() if not operation.body))
@settings(max_examples=WITHOUT_BODY, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_whatever_is_asked_the_answer_is_declared_and_no_5xx(
    penstock: Secured, operation: Operation, names: dict[str, str], data: st.DataObject
) -> None:
    await check(penstock, operation, names, data)


@pytest.mark.parametrize("penstock", ["not asked"], indirect=True, scope="module")
@each(*operations()[::EIGHTH])
@settings(max_examples=WITHOUT_BODY, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_without_authentication_the_answer_is_declared_and_no_5xx(
    penstock: Secured, operation: Operation, names: dict[str, str], data: st.DataObject
) -> None:
    """The code behind the authentication is the same, so the short form has an eighth of it."""
    await check(penstock, operation, names, data)


@pytest.mark.parametrize("penstock", ["asked"], indirect=True, scope="module")
@each(*(operation for operation in operations() if isinstance(row_of(operation).body, dict)))
async def test_a_wrong_word_in_any_field_gets_a_declared_answer_and_no_5xx(
    penstock: Secured, operation: Operation, names: dict[str, str]
) -> None:
    """The words fit the type of their fields, and name nothing that exists."""
    good = body_of(operation, names)
    words = [name for name, value in good.items() if isinstance(value, str)]
    for wrong in words:
        case = operation.Case(
            path_parameters={
                each.name: names.get(each.name, "none") for each in operation.path_parameters
            },
            body={**good, wrong: "unknown"},
            media_type=JSON,
        )
        case.validate_response(await ask(penstock.http, case, ANYTHING), checks=CHECKS)


@pytest.mark.chaos
@each(*operations())
@settings(max_examples=MANY, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_whatever_else_is_sent_the_answer_is_declared_and_no_5xx(
    penstock: Secured, operation: Operation, names: dict[str, str], data: st.DataObject
) -> None:
    await check(penstock, operation, names, data)


@pytest.mark.parametrize("penstock", ["asked"], indirect=True, scope="module")
async def test_a_method_that_is_not_declared_is_405(penstock: Secured) -> None:
    for path, item in document()["paths"].items():
        if path == SOCKET:
            continue
        for method in {"get", "post", "put", "patch", "delete"} - set(item):
            answer = await penstock.http.request(method, path, headers=bearer())
            assert answer.status_code == 405, (method, path)
            assert answer.headers["allow"]


@pytest.mark.parametrize("penstock", ["asked"], indirect=True, scope="module")
async def test_a_body_of_another_kind_is_415(penstock: Secured) -> None:
    for path, item in document()["paths"].items():
        for method, operation in item.items():
            if "requestBody" not in operation:
                continue
            row = next(row for row in ROWS if told(row.method, row.route) == told(method, path))
            url = row.route.format(**await penstock.given(row))
            headers = {**ANYTHING, **row.how.headers, "content-type": "text/plain"}
            answer = await penstock.http.request(method, url, headers=headers, content=b"{}")
            assert answer.status_code == 415, (method, path)


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (500, {"type": "", "title": "", "status": 500, "detail": ""}, "Server error"),
        (418, {"type": "", "title": "", "status": 418, "detail": ""}, "Undocumented status code"),
        (404, {"message": "unknown"}, "Response violates schema"),
    ],
)
async def test_a_wrong_answer_is_found_out(status: int, body: dict[str, Any], why: str) -> None:
    operation = next(each for each in operations() if each.label == "GET /v1/runs/{run_id}")
    case = operation.Case(path_parameters={"run_id": "r"})
    answer = httpx.Response(
        status, headers={"content-type": "application/problem+json"}, content=orjson.dumps(body)
    )
    transport = httpx.MockTransport(lambda request: answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as http:
        response = await ask(http, case, {})
    with pytest.raises(FailureGroup, match=why):
        case.validate_response(response, checks=CHECKS)
