"""Coming back to a run that goes on: one that has seen nothing is brought to where it stands.

The client rejects a stream that begins in the middle, and doubles what it is told twice. So what
was said is restated: RUN_STARTED, MESSAGES_SNAPSHOT, STATE_SNAPSHOT, one start for each open item;
then the run's own frames go on.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from penstock.dialects.agui.encode.encoder import AguiEncoder, Phase
from penstock.dialects.agui.encode.memory import NOTHING, Memory
from penstock.dialects.agui.vocabulary import EventType
from penstock.dialects.base import JsonObject
from penstock.sse import Frame


def remember(memory: Memory, encoder: AguiEncoder, events: Iterable[JsonObject]) -> None:
    """Adds a run of the thread, or the next events of one, to what a client would hold.

    `events` are canonical ones, in order; they are fed to `encoder`.
    """
    for event in events:
        frames = encoder.feed(event)
        name = event["event"]
        if (name["category"], name["action"]) == ("lifecycle", "started"):
            message = event["data"].get("message")
            if message:
                memory.hear(f"{event['run_id']}-user", message)
        for frame in frames:
            memory.apply(orjson.loads(frame.data))


def prelude(
    encoder: AguiEncoder, events: Iterable[JsonObject], memory: Memory | None = None
) -> list[Frame]:
    """The frames that bring an empty client to where the run stands after `events`.

    `encoder` is new, and goes on from there when fed the later events. `memory` has what was
    before this run in its thread (other runs, see `remember`; the client's own messages and
    state). A run that waits or is over is told with its last terminal event. Empty for no events.
    """
    memory = memory or Memory()
    remember(memory, encoder, events)
    if memory.run is None or encoder.phase is Phase.BEFORE:
        return []
    frames = [_frame(memory.run)]
    if memory.messages:
        frames.append(_restated(encoder, EventType.MESSAGES_SNAPSHOT, messages=memory.messages))
    if memory.state is not NOTHING:
        frames.append(_restated(encoder, EventType.STATE_SNAPSHOT, snapshot=memory.state))
    if memory.end is not None:
        return [*frames, _frame(memory.end)]
    return frames + [
        _frame(encoder.profile.body(*said, encoder.place)) for said in encoder.reopened()
    ]


def _restated(encoder: AguiEncoder, type: EventType, **fields: object) -> Frame:
    return _frame(encoder.profile.body(type, fields, {}, encoder.place))


def _frame(body: JsonObject) -> Frame:
    return Frame(orjson.dumps(body), body["type"])
