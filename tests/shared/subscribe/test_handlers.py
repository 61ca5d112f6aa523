"""The annotation of a handler says which events it wants, and a mistake is named at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from penstock.bus import subjects
from penstock.events import Data, Event
from penstock.events.llm import ToolCall, ToolResult
from penstock.subscribe import Received, Sealed
from penstock.subscribe.handlers import handler_of


async def one(event: ToolCall) -> None: ...
async def joined(event: ToolCall | ToolResult) -> None: ...
async def received(event: Received[ToolCall]) -> None: ...
async def any_data(event: Data) -> None: ...
async def any_received(event: Received[Data]) -> None: ...
async def envelope(event: Event) -> None: ...
async def or_sealed(event: ToolCall | Sealed) -> None: ...
async def received_or_sealed(event: Received[ToolCall | Sealed]) -> None: ...
async def with_more(event: Event, times: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("call", "events", "wanted"),
    [
        (one, (), ["llm.tool_call.*"]),
        (one, ("llm.tool_call",), ["llm.tool_call.*"]),
        (one, ("llm.tool_call.0198",), ["llm.tool_call.0198"]),
        (joined, (), ["llm.tool_call.*", "llm.tool_result.*"]),
        (joined, ("llm.tool_result",), ["llm.tool_result.*"]),
        (received, (), ["llm.tool_call.*"]),
        (or_sealed, (), ["llm.tool_call.*"]),
        (received_or_sealed, ("llm.tool_call",), ["llm.tool_call.*"]),
        (any_data, ("llm.*",), ["llm.*.*"]),
        (any_received, ("llm",), ["llm.*.*"]),
        (envelope, ("approval.*", "approval.requested"), ["approval.*.*"]),
        (envelope, ("*.*",), ["*.*.*"]),
        (envelope, ("invented.event",), ["invented.event.*"]),
        (with_more, ("*.failed",), ["*.failed.*"]),
    ],
)
def test_a_handler_wants_what_it_names(
    call: Any, events: tuple[str, ...], wanted: list[str]
) -> None:
    assert subjects.event_patterns(handler_of(call, events).events) == wanted


@pytest.mark.parametrize(
    ("call", "takes_sealed"),
    [
        (one, False),
        (joined, False),
        (received, False),
        (or_sealed, True),
        (received_or_sealed, True),
        (any_data, True),
        (any_received, True),
        (envelope, True),
    ],
)
def test_a_handler_says_whether_it_takes_events_without_content(
    call: Any, takes_sealed: bool
) -> None:
    assert handler_of(call, ("llm.tool_call",)).takes_sealed is takes_sealed


async def sealed_only(event: Sealed) -> None: ...
async def unannotated(event) -> None: ...  # type: ignore[no-untyped-def]
async def of_text(event: str) -> None: ...
async def of_none(event: ToolCall | None) -> None: ...
async def two(event: Event, other: Event) -> None: ...
async def none() -> None: ...
def plain(event: Event) -> None: ...


@pytest.mark.parametrize(
    ("call", "events", "message"),
    [
        (unannotated, (), "annotate the parameter event with one of the models"),
        (of_text, (), "the annotation must be one of the models"),
        (of_none, (), "the annotation must be one of the models"),
        (sealed_only, ("llm.tool_call",), "join Sealed with the model of an event"),
        (two, ("llm.*",), "must have one parameter"),
        (none, ("llm.*",), "must have one parameter"),
        (plain, ("llm.*",), "async def"),
        (envelope, (), "name the events that it wants"),
        (any_data, (), "name the events that it wants"),
        (one, ("llm.*",), "has events that its annotation does not accept"),
        (one, ("approval.requested",), "has events that its annotation does not accept"),
        (one, ("llm.tool_cal",), "there is no event llm.tool_cal"),
        (envelope, ("llm..x",), "is no subject"),
        (envelope, ("a.b.c.d",), "is no subject"),
        (envelope, ("",), "is no subject"),
    ],
)
def test_a_mistake_is_an_error_that_says_what_to_write(
    call: Any, events: tuple[str, ...], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        handler_of(call, events)


@pytest.mark.parametrize(
    ("pattern", "other", "covers", "meet"),
    [
        ("llm.*.*", "llm.stream.*", True, True),
        ("llm.>", "llm.stream.*", True, True),
        ("llm.stream.*", "llm.>", False, True),
        ("*.*.run", "llm.stream.*", False, True),
        ("llm.stream.*", "llm.tool_call.*", False, False),
        ("*.failed.*", "lifecycle.*.*", False, True),
        ("llm.*", "llm.stream.x", False, False),
    ],
)
def test_patterns_are_compared_token_by_token(
    pattern: str, other: str, covers: bool, meet: bool
) -> None:
    assert subjects.covers(pattern, other) == covers
    assert subjects.can_overlap(pattern, other) == meet
    assert subjects.can_overlap(other, pattern) == meet


@pytest.mark.parametrize("missing", ["faststream", "nats"])
def test_without_the_extra_the_import_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import penstock.subscribe"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert "pip install 'penstock[subscribe]'" in done.stderr
