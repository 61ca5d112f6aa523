"""Schedules messages: NATS publishes such a message at its time, also after restarts."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from penstock.bus.errors import FenceConflict
from penstock.bus.messages import Message
from penstock.bus.write import fence
from penstock.bus.write.fence import Writes

_AT, _TARGET, _TTL = "Nats-Schedule", "Nats-Schedule-Target", "Nats-TTL"
_DUE_TTL = "Nats-Schedule-TTL"


async def schedule(
    bus: Writes,
    subject: str,
    target: str,
    at: float,
    payload: bytes,
    due_ttl_s: float | None = None,
) -> bool:
    """Have the server publish the payload to `target` at the time `at`, in Unix seconds.

    `subject` names the scheduled message, so a repeated call schedules nothing and returns False
    while the first message waits. The time is rounded up to whole seconds; a time in the past means
    at once. `target` must be a subject of SCHEDULES. `due_ttl_s` has the same meaning as in
    `reschedule`.
    """
    try:
        await reschedule(bus, subject, target, at, payload, 0, due_ttl_s)
    except FenceConflict:
        return False
    return True


async def reschedule(
    bus: Writes,
    subject: str,
    target: str,
    at: float,
    payload: bytes,
    last: int,
    due_ttl_s: float | None = None,
) -> None:
    """Replace the scheduled message of a subject, which must have the stream sequence `last`.

    A subject has one scheduled message: the server drops the earlier one. `last` is 0 for a subject
    without a message. `due_ttl_s`: the server deletes the published message this many seconds after
    its due time; None for never.

    Raises:
        FenceConflict: the subject's message has another sequence; nothing was scheduled.
        OutcomeUnknown: no acknowledgement came in time; read the subject's message.
    """
    when = datetime.fromtimestamp(math.ceil(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # Without the TTL "never", an age limit that an operator sets on the stream would delete the
    # message before its time.
    headers = {_AT: f"@at {when}", _TARGET: target, _TTL: "never"}
    if due_ttl_s is not None:
        headers[_DUE_TTL] = f"{due_ttl_s:.0f}s"
    await fence.append(bus, subject, [Message(subject, payload, headers)], last)
