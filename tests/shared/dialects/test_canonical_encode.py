"""The canonical dialect sends an event unchanged."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.dialects.canonical import CanonicalEncoder


def event(type: str, data: dict[str, Any], **more: Any) -> dict[str, Any]:
    category, _, action = type.partition(".")
    return {
        "run_id": "01938b5e-0000-7000-8000-000000000001",
        "timestamp": "2026-01-02T03:04:05.678Z",
        "sequence": 7,
        "source": None,
        "event": {"category": category, "action": action},
        "data": data,
        **more,
    }


def test_an_event_is_one_frame_named_by_its_category_and_action() -> None:
    [frame] = CanonicalEncoder().feed(event("llm.stream", {"content": "hi", "message_id": "m1"}))
    assert frame.event == "llm.stream"


def test_every_field_goes_out_unchanged_also_those_that_nobody_knows() -> None:
    whole = event(
        "custom.future", {"x": [1, {"é": None}]}, session_id="s", leg=2, invented={"a": 1.5}
    )
    [frame] = CanonicalEncoder().feed(whole)
    assert orjson.loads(frame.data) == whole


def test_the_data_is_one_line_whatever_the_text_holds() -> None:
    text = "a\nb\r\nc\u2028d\u2029e\u0085f\0g"
    [frame] = CanonicalEncoder().feed(event("llm.stream", {"content": text, "message_id": "m"}))
    assert b"\n" not in frame.data
    assert b"\r" not in frame.data
    assert orjson.loads(frame.data)["data"]["content"] == text
