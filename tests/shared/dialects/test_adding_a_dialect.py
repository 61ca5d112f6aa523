"""A new dialect or protocol is one row of a table, from which all services read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from penstock.bus import Stored
from penstock.dialects.base import AgentFacts, ClientDialect, Draft, JsonObject
from penstock.dialects.decoders import DECODERS
from penstock.dialects.encoders import CLIENT_DIALECTS
from penstock.events import CATALOGUE
from penstock.sse import Frame, Parser
from penstock_edge.views.dialects import run_view
from penstock_edge.views.view import ReadFrom
from penstock_normalizer.fold.run_fold import RunFold
from support.fakes.raw import RUN_ID, Frames
from support.recorded.canonical import event, run, type_of


@dataclass(slots=True)
class CountingEncoder:
    """A toy dialect that encodes each event as its number in the run and its type."""

    _count: int = 0

    def feed(self, event: JsonObject) -> Sequence[Frame]:
        self._count += 1
        if type_of(event) == "system.warning":
            return ()
        return (Frame(orjson.dumps({"count": self._count, "type": type_of(event)}), "counted"),)


TOY = ClientDialect(CountingEncoder, omitted={"system.warning": "nowhere"}, stateful=True)


class LineDecoder:
    """A toy protocol: each frame is a piece of one message, and the end completes the run."""

    def __init__(self, agent: AgentFacts) -> None:
        self._text = ""

    def open(self, leg: int) -> list[Draft]:
        return []

    def decided(self, items: Mapping[str, JsonObject]) -> list[Draft]:
        return []

    def feed(self, frame: Frame) -> list[Draft]:
        self._text += frame.data.decode()
        data = {"message_id": "m", "content": frame.data.decode(), "role": "assistant"}
        return [Draft("llm.stream", data)]

    def end(self) -> list[Draft]:
        data = {"message_id": "m", "content": self._text, "role": "assistant"}
        done = Draft("lifecycle.completed", {"summary": self._text})
        return [Draft("llm.message_completed", data), done]

    def abort(self) -> list[Draft]:
        return []

    def snapshot(self) -> JsonObject:
        return {"text": self._text}

    def restore(self, state: JsonObject) -> None:
        self._text = state["text"]


def stored(sequence: int, body: dict[str, Any]) -> Stored:
    return Stored(f"{type_of(body)}.{RUN_ID}", sequence, {}, orjson.dumps(body))


def test_a_client_dialect_of_the_table_is_streamed_by_the_edge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CLIENT_DIALECTS, "toy", TOY)
    said = run(("llm.stream", {"message_id": "m", "content": "a"}), ("lifecycle.completed", {}))
    toy = run_view(RUN_ID, "toy")
    encoding = toy.encoding()
    items = [encoding.feed(stored(at, each)) for at, each in enumerate(said, 1)]
    frames = Parser().feed(b"".join(item.body for item in items))
    assert [(frame.id, frame.event, orjson.loads(frame.data)) for frame in frames] == [
        ("1-0", "counted", {"count": 1, "type": "lifecycle.started"}),
        ("2-0", "counted", {"count": 2, "type": "llm.stream"}),
        ("3-0", "counted", {"count": 3, "type": "lifecycle.completed"}),
    ]
    assert toy.reads_from is ReadFrom.START
    assert [item.last for item in items] == [False, False, True]
    # The dialect has no event for a warning, so the edge writes a comment.
    assert toy.notice("slow", "too slow") == b": slow: too slow\n\n"


def test_a_protocol_of_the_table_is_read_by_the_normalizer() -> None:
    fold = RunFold(RUN_ID, {**DECODERS, "toy": LineDecoder})
    frames = Frames("toy")
    body = b"data: Hello\n\ndata:  you\n\n"
    events = [
        placed
        for frame in (frames.open(), frames.bytes(body), frames.end())
        for placed in fold.feed(frame)
    ]
    assert [placed.type for placed in events] == [
        "lifecycle.started",
        "llm.stream",
        "llm.stream",
        "llm.message_completed",
        "lifecycle.completed",
    ]
    assert events[-1].data["summary"] == "Hello you"


@pytest.mark.parametrize("name", CLIENT_DIALECTS)
def test_a_dialect_names_each_type_that_it_has_no_event_for(name: str) -> None:
    dialect = CLIENT_DIALECTS[name]
    assert dialect.omitted.keys() <= CATALOGUE.keys()
    warning = event("system.warning", {"message": "m", "code": "c"})
    assert bool(dialect.encoder().feed(warning)) is dialect.has_warnings
