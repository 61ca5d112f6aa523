"""Makes the frames that bring a client, which has no events yet, to the current state of a run.

A client rejects a stream that begins in the middle of a run. If events were repeated, the client
would show them twice. So the prelude has the whole conversation as snapshots. The frames of the
prelude are RUN_STARTED, MESSAGES_SNAPSHOT, STATE_SNAPSHOT, and one start for each open part. After
the prelude, the client gets the frames of the run's later events.
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
    """Add a run of the thread, or further events of a run, to a client's memory.

    `events` are the canonical events in their order, and `encoder` encodes them.
    """
    for event in events:
        frames = encoder.feed(event)
        name = event["event"]
        if (name["category"], name["action"]) == ("lifecycle", "started"):
            message = event["data"].get("message")
            if message:
                memory.add_user_message(f"{event['run_id']}-user", message)
        for frame in frames:
            memory.apply(orjson.loads(frame.data))


def prelude(
    encoder: AguiEncoder, events: Iterable[JsonObject], memory: Memory | None = None
) -> list[Frame]:
    """Return the frames that bring a client without events to the state of the run after `events`.

    `encoder` must be new. The caller then uses this encoder for the later events. `memory` has the
    thread before this run: other runs (see `remember`), and the client's own messages and state. If
    the run waits or has ended, the last frame is RUN_FINISHED or RUN_ERROR. The result is empty if
    there are no events.
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
        _frame(encoder.profile.body(*emitted, encoder.event_ids)) for emitted in encoder.reopened()
    ]


def _restated(encoder: AguiEncoder, event_type: EventType, **fields: object) -> Frame:
    return _frame(encoder.profile.body(event_type, fields, {}, encoder.event_ids))


def _frame(body: JsonObject) -> Frame:
    return Frame(orjson.dumps(body), body["type"])
