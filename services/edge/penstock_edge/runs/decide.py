"""Finds the pause of a run, and the stream position at which the run's next leg begins (decision
0105)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.bus import Bus, Entry
from penstock.bus.messages import FIRST
from penstock.bus.records import ApprovalRecord, PauseRecord
from penstock.bus.subjects import key_of, shard_of
from penstock.bus.write.objects import unwrap
from penstock.events.catalogue import TERMINAL
from penstock.lookups import look_until
from penstock.web.problems import Problem
from penstock_edge.sources.locate import StartPosition, lifecycle_of, start_of_new_run
from penstock_edge.views.items import type_of


@dataclass(frozen=True, slots=True)
class Pause:
    """The pause of a run, with the record of its approval.

    An Agno server calls each item of a pause a requirement. `shown` maps the ids of requirements to
    item ids; it is empty for other agent servers.
    """

    approval: ApprovalRecord
    shown: Mapping[str, str]

    @property
    def items(self) -> list[dict[str, Any]]:
        """The items of the event approval.requested."""
        return self.approval.items


async def pause_of(bus: Bus, caller: str, run_id: str, fits: Callable[[Pause], bool]) -> Pause:
    """Return the run's last pause, whether the pause is decided or not.

    A client's answer may arrive before the pause's record is written. So this function waits for a
    pause that `fits` accepts, as `look_until` describes. After that, it returns the last pause even
    if `fits` does not accept this pause. `caller` is the user who answers.

    Raises:
        Problem: 409 if the run has ended, or is not paused.
        BusError: the streams cannot be read now.
    """
    pause = await look_until(
        caller, lambda: _pause_of(bus, run_id), lambda pause: pause is not None and fits(pause)
    )
    if pause is None:
        raise Problem(409, f"run {run_id} is not paused")
    return pause


async def approval_record(bus: Bus, approval_id: str) -> ApprovalRecord | None:
    """Return the record of an approval; None if there is no record.

    Raises:
        BusError: KV cannot be read now.
        ObjectGone: the record's payload has expired.
    """
    entry = await bus.bucket("approvals").get(approval_id)
    if entry is None:
        return None
    return ApprovalRecord.model_validate_json(await unwrap(bus, entry.value))


async def _pause_of(bus: Bus, run_id: str) -> Pause | None:
    lifecycle = await lifecycle_of(bus, run_id)
    if lifecycle is None:
        return None
    event_type = type_of(lifecycle)
    if event_type in TERMINAL:
        raise Problem(409, f"run {run_id} is already {event_type.removeprefix('lifecycle.')}")
    if event_type != "lifecycle.paused":
        return None
    paused = orjson.loads(await unwrap(bus, lifecycle.payload))
    approval = await approval_record(bus, str(paused["data"].get("approval_id")))
    return Pause(approval, await _shown(bus, approval)) if approval is not None else None


async def _shown(bus: Bus, approval: ApprovalRecord) -> Mapping[str, str]:
    """Map the ids of an Agno server's requirements to the ids of the items.

    The result is empty if the agent server has another protocol, or if the pause has no record.
    """
    kept = await kept_pause(bus, approval.run_id)
    if kept is None or kept.approval_id != approval.approval_id or kept.protocol != "agno":
        return {}
    shown = {}
    for item_id, path in kept.resume.get("items", {}).items():
        target: Any = kept.resume
        for step in path:
            target = target[step]
        if isinstance(approval_id := target.get("id"), str):
            shown[approval_id] = item_id
    return shown


async def kept_pause(bus: Bus, run_id: str) -> PauseRecord | None:
    """Return the record of the run's last pause; None if there is none.

    Raises:
        BusError: KV cannot be read now.
        ObjectGone: the record's payload has expired.
    """
    entry = await bus.bucket("pauses").get(run_id)
    if entry is None or entry.value is None:
        return None
    return PauseRecord.model_validate_json(await unwrap(bus, entry.value))


async def find_alias(
    bus: Bus, user_id: str, agent: str, session_id: str, item_id: str
) -> Entry | None:
    """Return the alias of a pause's item: the user's own alias, else the alias without a user.

    The result is None if there is no alias. The alias without a user may belong to another user's
    run, so the caller must check that the user may see the approval. The alias without a user is
    needed in two cases: the caller acts for the run's user, whose own alias has another key; or an
    older version wrote the alias, without the owner in the key.
    """
    aliases, named = bus.bucket("aliases"), (agent, session_id, item_id)
    own = await aliases.get(key_of("approval", user_id, *named))
    return own or await aliases.get(key_of("approval", *named))


async def start_of_next_leg(bus: Bus, run_id: str, *, frames: bool = False) -> StartPosition:
    """Return a position before all messages of the run's next leg.

    With `frames`, the result is the position after all stored source frames. Without `frames`, the
    result is the position of the run's first event, because the encoders of legs need all earlier
    events.
    """
    lifecycle = await lifecycle_of(bus, run_id)
    position = await start_of_new_run(bus, shard_of(run_id), frames=frames)
    if lifecycle is None:
        return position
    if frames:
        # The run's terminal event comes after the pause, so the source looks for the terminal event
        # from the pause on.
        return StartPosition(position.start, lifecycle.sequence)
    first = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
    return StartPosition(first, first)
