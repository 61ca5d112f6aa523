"""A decision must fit its request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from penstock.bus.records.approvals import ApprovalRecord, Decided, Decider, DecideRequest
from penstock_approvals.outcomes.rules import DecisionMismatch, check, misfit, outcome

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


def approval(*items: dict[str, Any]) -> ApprovalRecord:
    return ApprovalRecord(
        approval_id="p",
        run_id="r",
        agent="a",
        session_id="s",
        user_id="u",
        leg=1,
        digest="sha256:0",
        items=list(items),
        requested_at="2026-11-20T10:00:00.000Z",
        updated_at="2026-11-20T10:00:00.000Z",
    )


def asked(item_id: str, kind: str = "confirmation", **fields: Any) -> dict[str, Any]:
    return {"item_id": item_id, "kind": kind, **fields}


def request(*items: tuple[str, str] | tuple[str, str, Any]) -> DecideRequest:
    return DecideRequest(
        decider=Decider(name="ada"),
        items=[
            Decided.model_validate(dict(zip(("item_id", "decision", "value"), item, strict=False)))
            for item in items
        ],
    )


def test_every_item_is_decided_by_itself() -> None:
    check(approval(asked("1"), asked("2")), request(("1", "approve"), ("2", "reject")))


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([("1", "approve")], "not decided: 2"),
        ([], "not decided: 1, 2"),
        ([("1", "approve"), ("2", "approve"), ("3", "approve")], "no item 3"),
        ([("1", "approve"), ("2", "approve"), ("1", "reject")], "item 1 is decided 2 times"),
    ],
    ids=["one missing", "all missing", "one too many", "one twice"],
)
def test_all_items_and_nothing_else_must_be_decided(items: list[Any], words: str) -> None:
    with pytest.raises(DecisionMismatch, match=words):
        check(approval(asked("1"), asked("2")), request(*items))


@pytest.mark.parametrize("kind", ["input", "feedback", "selection", "credential"])
def test_what_can_only_be_answered_cannot_be_rejected(kind: str) -> None:
    with pytest.raises(DecisionMismatch, match="cannot be rejected"):
        check(approval(asked("1", kind)), request(("1", "reject")))


@pytest.mark.parametrize(
    "kind", ["input", "feedback", "selection", "credential", "external", "long_running"]
)
def test_what_is_asked_for_a_value_needs_one(kind: str) -> None:
    with pytest.raises(DecisionMismatch, match="needs a value"):
        check(approval(asked("1", kind)), request(("1", "approve")))
    check(approval(asked("1", kind)), request(("1", "approve", {"any": "thing"})))


@pytest.mark.parametrize("kind", ["confirmation", "external", "long_running", "review"])
def test_what_would_run_can_be_rejected_without_a_value(kind: str) -> None:
    check(approval(asked("1", kind, input_schema=SCHEMA)), request(("1", "reject")))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"city": 1}, "value.city: must be string, not 1"),
        ({"days": 3}, "value.city: is missing"),
        ("Rome", 'value: must be object, not "Rome"'),
        ({"city": "Rome", "days": "many"}, 'value.days: must be integer, not "many"'),
    ],
)
def test_a_value_must_fit_the_schema(value: Any, words: str) -> None:
    wanted = approval(asked("1", "input", input_schema=SCHEMA))
    with pytest.raises(DecisionMismatch, match=words):
        check(wanted, request(("1", "approve", value)))
    check(wanted, request(("1", "approve", {"city": "Rome"})))


def test_a_schema_that_is_none_is_left_to_the_upstream() -> None:
    broken = asked("1", "input", input_schema={"type": "no such type"})
    check(approval(broken), request(("1", "approve", 1)))


@pytest.mark.parametrize(
    ("decisions", "together"),
    [
        (["approve"], "approved"),
        (["approve", "approve"], "approved"),
        (["reject", "reject"], "rejected"),
        (["reject", "approve"], "mixed"),
    ],
)
def test_items_together_make_the_outcome(decisions: list[str], together: str) -> None:
    items = [(str(number), decision) for number, decision in enumerate(decisions)]
    assert outcome(request(*items).items) == together


@pytest.fixture
def asked_for() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server, and the paths of the requests that it gets."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "object"}')

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$schema"])
def test_the_schema_of_an_agent_s_server_makes_no_requests(
    asked_for: tuple[str, list[str]], keyword: str
) -> None:
    url, paths = asked_for
    assert misfit({keyword: f"{url}/latest/meta-data"}, {"a": 1}) is None
    assert misfit({"properties": {"a": {keyword: f"{url}/x"}}}, {"a": 1}) is None
    assert paths == []


DOUBLING: dict[str, Any] = {
    "$ref": "#/$defs/0",
    "$defs": {
        str(number): {"allOf": [{"$ref": f"#/$defs/{number + 1}"}] * 2} for number in range(40)
    }
    | {"40": {}},
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": "(a+)+$"}, "a" * 60 + "b"),
        ({"pattern": "((a|aa){1,30}){1,30}b"}, "a" * 400_000),
        ({"patternProperties": {"(a+)+$": False}}, {"a" * 60 + "b": 1}),
        (DOUBLING, 1),
        ({"$ref": "#"}, 1),
        ({"$ref": "#/nowhere"}, 1),
    ],
    ids=["pattern", "large pattern", "names", "doubling", "circle", "nowhere"],
)
def test_no_schema_of_an_agent_s_server_takes_long(schema: dict[str, Any], value: Any) -> None:
    started = time.process_time()
    misfit(schema, value)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"to": {"street": "x"}}, None),
        ({"to": {"street": 1}}, "value.to.street: must be string, not 1"),
        ({"to": None, "next": {"to": 1}}, "value.next.to: must fit one of the 2 of anyOf"),
    ],
)
def test_the_references_of_a_schema_are_followed(value: Any, reason: str | None) -> None:
    """The schema is as pydantic writes it, with `discriminator` as a keyword of its own."""
    address = {"type": "object", "properties": {"street": {"type": "string"}}}
    if reason is not None and "street" in reason:
        to: dict[str, Any] = {"$ref": "#/$defs/Address"}
    else:
        to = {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}]}
    schema = {
        "type": "object",
        "properties": {"to": to | {"discriminator": {}}, "next": {"$ref": "#"}},
        "$defs": {"Address": address},
    }
    assert misfit(schema, value) == reason


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("^[a-z]+$", "abc", True),
        ("^[a-z]+$", "a1", False),
        ("b", "abc", True),
        ("(?=a)b", "c", True),
        ("^a", 5, True),
    ],
)
def test_a_text_has_the_pattern_that_its_schema_asks_for(
    pattern: str, value: Any, fits: bool
) -> None:
    assert (misfit({"pattern": pattern}, value) is None) is fits
