"""A workflow that cannot be started, or not with this input, is refused before anything starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.bus import Bus
from penstock.bus.records.workflows import LatestWorkflow, WorkflowRecord
from penstock.runs.workflows import (
    check_start,
    checked_input,
    input_of,
    latest_key,
    version_key,
)
from penstock.turns import TenantUser
from penstock.web.problems import Problem
from support.drive.bus import connected
from support.real.nats import NatsServer

SCHEMA = {"type": "object", "required": ["diff"], "properties": {"diff": {"type": "string"}}}

ADA = TenantUser("", "ada")


def _record(version: str, input_schema: dict[str, Any]) -> WorkflowRecord:
    return WorkflowRecord(
        name="code_review",
        version=version,
        digest="0",
        definition={},
        input_schema=input_schema,
        created_at="2026-11-22T00:00:00Z",
        created_by="alice",
    )


@pytest.fixture(scope="module")
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with connected(nats_server.url) as bus:
        bucket = bus.bucket("workflows")
        for version in ("1", "1.2"):
            record = _record(version, SCHEMA)
            await bucket.create(version_key("code_review", version), record.dump())
        latest = LatestWorkflow(version="1.2").dump()
        await bucket.create(latest_key("code_review"), latest)
        await bucket.create(latest_key("old"), LatestWorkflow(updated_at="x").dump())
        yield bus


async def test_a_start_takes_the_latest_version_or_the_named_one(bus: Bus) -> None:
    for version, taken in ((None, "1.2"), ("1", "1")):
        start = await check_start(bus, "code_review", version, sent={"diff": "x"}, user=ADA)
        assert start.record.version == taken
        assert start.input == {"diff": "x"}


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("review", None, "there is no workflow 'review'"),
        ("old", None, "retired"),
        ("old", "1", "retired"),
        ("code_review", "2", "has no version 2"),
        ("*", None, "there is no workflow '*'"),
        (">", None, "there is no workflow '>'"),
        ("code_review", ">", "has no version >"),
        ("code_review", "*", "has no version *"),
        ("code_review", "1.", "has no version 1."),
        ("a.b", None, "there is no workflow"),
        ("", None, "there is no workflow"),
        ("code_review\n", None, "there is no workflow"),
        ("code_review", "1\n", "has no version"),
    ],
)
async def test_an_unknown_workflow_is_refused(
    bus: Bus, name: str, version: str | None, told: str
) -> None:
    with pytest.raises(Problem) as refused:
        await check_start(bus, name, version, sent={"diff": "x"}, user=ADA)
    assert refused.value.status == 404
    assert told in refused.value.detail


@pytest.mark.parametrize("given", [None, {}, {"diff": 1}])
async def test_an_input_that_does_not_fit_is_refused_with_its_path(bus: Bus, given: Any) -> None:
    with pytest.raises(Problem) as refused:
        await check_start(bus, "code_review", None, sent=given, message="a message", user=ADA)
    assert refused.value.status == 422
    [error] = refused.value.more["errors"]
    assert error["field"] == "input.diff"


async def test_a_long_check_of_one_users_input_does_not_hold_up_the_event_loop() -> None:
    each = {"anyOf": [*[{"type": "string", "minLength": 9}] * 20, {"type": "string"}]}
    record = _record("1", {"properties": {"texts": {"items": each}}})
    turns, longest_s = 0, 0.0

    async def count_turns() -> None:
        nonlocal turns, longest_s
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(0)
            turns, longest_s = turns + 1, max(longest_s, time.thread_time() - before_s)

    counting = asyncio.create_task(count_turns())
    try:
        with pytest.raises(Problem, match="too large to be checked"):
            await checked_input(record, {"texts": ["x"] * 20_000}, "", user=ADA)
        few = {"texts": ["x"] * 2_000}
        assert await checked_input(record, few, "", user=ADA) == few
    finally:
        counting.cancel()
    assert turns > 10
    assert longest_s < 0.1  # of this thread's CPU time; the first check takes three times as long


async def test_an_input_that_is_too_large_is_refused(bus: Bus) -> None:
    with pytest.raises(Problem, match="must have at most 524288 bytes"):
        await check_start(bus, "code_review", None, sent={"diff": "x" * 600_000}, user=ADA)


def test_the_message_is_part_of_the_input_unless_the_schema_forbids_it() -> None:
    assert input_of({}, {"a": 1}, "hi") == {"a": 1, "message": "hi"}
    assert input_of({}, {"message": "own"}, "hi") == {"message": "own"}
    assert input_of({}, None, "") == {}
    closed: dict[str, Any] = {"properties": {"a": {}}, "additionalProperties": False}
    assert input_of(closed, {"a": 1}, "hi") == {"a": 1}
    closed["properties"]["message"] = {}
    assert input_of(closed, None, "hi") == {"message": "hi"}


def test_numbers_of_the_input_have_the_types_of_the_schema() -> None:
    number, integer = {"type": "number"}, {"type": "integer"}
    schema = {
        "properties": {
            "x": number,
            "n": integer,
            "maybe": {"type": ["number", "null"]},
            "either": {"type": ["integer", "number"]},
            "yes": number,
            "large": number,
            "list": {"items": {"properties": {"x": number}}},
            "rest": {"additionalProperties": number},
            "any": {},
        }
    }
    sent = {
        **{"x": 2, "n": 2.0, "maybe": 2, "either": 2, "yes": True, "large": 2**70, "any": 2},
        **{"list": [{"x": 2, "y": 2}], "rest": {"a": 2}},
    }
    found = input_of(schema, sent, "")
    assert repr(found) == repr(
        {
            **{"x": 2.0, "n": 2, "maybe": 2.0, "either": 2.0, "yes": True, "large": 2**70},
            **{"any": 2, "list": [{"x": 2.0, "y": 2}], "rest": {"a": 2.0}},
        }
    )
    assert sent["x"] == 2
    assert type(sent["x"]) is int
