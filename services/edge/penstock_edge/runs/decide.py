"""What waits for an answer in a run, and handing one to the approvals service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import orjson

from penstock.bus import Bus, Entry, Msg, OutcomeUnknown
from penstock.bus.messages import FIRST
from penstock.bus.records import ApprovalRecord, DecideReply, DecideRequest, PauseRecord
from penstock.bus.subjects import decide, key_of
from penstock.bus.write.objects import unwrap
from penstock.events.catalogue import TERMINAL
from penstock.web.problems import Problem
from penstock_edge.sources.locate import Place, lifecycle_of, place_of_new
from penstock_edge.views.items import type_of

LOOKUP_S: Final = 2.0
LOOKUP_RETRY_S: Final = 0.05
ANSWER_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Pause:
    """What a run waits for. `shown`: the upstream's own ids of what is asked, to the items'."""

    approval: ApprovalRecord
    shown: Mapping[str, str]

    @property
    def items(self) -> list[dict[str, Any]]:
        """As approval.requested has them."""
        return self.approval.items


async def pause_of(bus: Bus, run_id: str, fits: Callable[[Pause], bool]) -> Pause:
    """The run's last pause, open or not.

    An answer may be faster than the record of what it answers: until there is a pause that it
    `fits`, that is waited for. Raises Problem 409 for a run that has ended, or is not paused.
    """
    deadline = asyncio.get_running_loop().time() + LOOKUP_S
    while True:
        pause = await _pause_of(bus, run_id)
        if pause is not None and fits(pause):
            return pause
        if asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(LOOKUP_RETRY_S)
    if pause is None:
        raise Problem(409, f"run {run_id} is not paused")
    return pause


async def _pause_of(bus: Bus, run_id: str) -> Pause | None:
    lifecycle = await lifecycle_of(bus, run_id)
    if lifecycle is None:
        return None
    type = type_of(lifecycle)
    if type in TERMINAL:
        raise Problem(409, f"run {run_id} is already {type.removeprefix('lifecycle.')}")
    if type != "lifecycle.paused":
        return None
    paused = orjson.loads(await unwrap(bus, lifecycle.payload))
    entry = await bus.bucket("approvals").get(str(paused["data"].get("approval_id")))
    if entry is None or entry.value is None:
        return None
    approval = ApprovalRecord.model_validate_json(await unwrap(bus, entry.value))
    return Pause(approval, await _shown(bus, approval))


async def _shown(bus: Bus, approval: ApprovalRecord) -> Mapping[str, str]:
    """Requirements of an Agno upstream have ids of their own."""
    kept = await kept_pause(bus, approval.run_id)
    if kept is None or kept.approval_id != approval.approval_id or kept.protocol != "agno":
        return {}
    shown = {}
    for item_id, path in kept.resume.get("items", {}).items():
        target: Any = kept.resume
        for step in path:
            target = target[step]
        if isinstance(id := target.get("id"), str):
            shown[id] = item_id
    return shown


async def kept_pause(bus: Bus, run_id: str) -> PauseRecord | None:
    """What is kept of the run's last pause. Raises BusError, ObjectGone."""
    entry = await bus.bucket("pauses").get(run_id)
    if entry is None or entry.value is None:
        return None
    return PauseRecord.model_validate_json(await unwrap(bus, entry.value))


async def find_alias(
    bus: Bus, user_id: str, agent: str, session_id: str, item_id: str
) -> Entry | None:
    """What is known of an item of a pause: the user's own first, then anybody's.

    Whoever goes on with anybody's checks that the caller sees it. It is there for those who act for
    others, and for pauses from before the owner was part of the name.
    """
    aliases, named = bus.bucket("aliases"), (agent, session_id, item_id)
    own = await aliases.get(key_of("approval", user_id, *named))
    return own or await aliases.get(key_of("approval", *named))


async def place_of_next_leg(bus: Bus, run_id: str, over_raw: bool) -> Place:
    """Of frames: after all that there are. Of events: the run's start, to be encoded anew."""
    lifecycle = await lifecycle_of(bus, run_id)
    place = await place_of_new(bus, over_raw)
    if lifecycle is None:
        return place
    if over_raw:
        # the run's end is looked for from its pause on
        return Place(place.start, lifecycle.sequence)
    first = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
    return Place(first, first)


async def take(bus: Bus, approval_id: str, request: DecideRequest) -> None:
    """Have the decision taken. Raises Problem as the approvals service answers: 404, 409, 422.

    Whoever was asked may have died of a kill between decision and answer: the key makes asking
    once more harmless. 503 where nobody answers then either: nobody knows whether it was taken.
    """
    keyed = request.model_copy(update={"idempotency_key": uuid4().hex})
    answer = await _asked(bus, approval_id, keyed) or await _asked(bus, approval_id, keyed)
    if answer is None:
        text = "it is not known whether the decision was taken; ask for the approval's state"
        raise Problem(503, text)
    reply = DecideReply.model_validate_json(answer.data)
    if reply.status != 200:
        raise Problem(reply.status, reply.detail)


async def _asked(bus: Bus, approval_id: str, request: DecideRequest) -> Msg | None:
    """The approvals service's answer; None when none came in time."""
    try:
        return await bus.request(decide(approval_id), request.dump(), ANSWER_S)
    except OutcomeUnknown:
        return None
