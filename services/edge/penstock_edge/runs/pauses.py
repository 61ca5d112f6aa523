"""Finds what a client's answer decides: the pause of a run, or the open approvals of a workflow
(decisions 0105 and 0209).

A workflow's run may wait for several approvals at once, its own and those of its steps' runs. A
client may answer several in one request, but each approval is decided separately.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from penstock.bus import Bus, Stored
from penstock.bus.messages import FIRST
from penstock.bus.records.approvals import ApprovalRecord
from penstock.bus.records.legs import PauseRecord
from penstock.bus.records.runs import RunRecord
from penstock.bus.subjects import is_run_id, key_of
from penstock.bus.write.objects import unwrap
from penstock.events.catalogue import TERMINAL
from penstock.lookups import look_until
from penstock.settings import AgentConfig, WorkflowAgent
from penstock.web.auth import Identity
from penstock.web.problems import Problem
from penstock_edge.sources.history import history_of_tree
from penstock_edge.sources.locate import ancestors_of, lifecycle_of, record_of
from penstock_edge.sources.sessions import Session, records_of
from penstock_edge.views.items import type_of
from penstock_edge.views.run_tree import Members

# How many of a session's newest runs are searched for a pause. The pause of an earlier run is found
# only by an item's id.
NEWEST: Final = 20

_REQUESTED: Final = "approval.requested"
_SETTLED: Final = frozenset({"approval.decided", "approval.expired", "approval.withdrawn"})
_PAUSED: Final = "lifecycle.paused"


@dataclass(frozen=True, slots=True)
class Pause:
    """A run's pause. `shown` maps an Agno server's ids of requirements to item ids; else it is
    empty."""

    approval: ApprovalRecord
    shown: Mapping[str, str]


async def pause_of(bus: Bus, caller: str, run_id: str, fits: Callable[[Pause], bool]) -> Pause:
    """Return the run's last pause, decided or not; 409 if the run has ended, or does not pause. A
    client's answer may arrive before the pause's record, so this waits for a pause that `fits`
    accepts, as `look_until` describes, but at last returns any other, too."""
    pause = await look_until(
        caller, lambda: _pause_of(bus, run_id), lambda pause: pause is not None and fits(pause)
    )
    if pause is None:
        raise Problem(409, f"run {run_id} is not paused")
    return pause


async def approval_record(bus: Bus, approval_id: str) -> ApprovalRecord | None:
    return await bus.bucket("approvals").load(approval_id, ApprovalRecord)


async def pause_record(bus: Bus, run_id: str) -> PauseRecord | None:
    return await bus.bucket("pauses").load(run_id, PauseRecord)


async def approval_seen(
    bus: Bus, who: Identity, approval_id: str, *, awaited: bool
) -> ApprovalRecord | None:
    """Return the approval if the caller may see it. With `awaited`, wait for the record: clients
    may answer before it is written."""
    if not is_run_id(approval_id):
        # A client may send any text as the id, and some texts are not valid keys in KV.
        return None
    look = partial(approval_record, bus, approval_id)
    record = await (
        look_until(who.user_id, look, lambda found: found is not None) if awaited else look()
    )
    return record if record is not None and who.may_see_runs_of(record.user_id) else None


async def approval_in_session(
    bus: Bus,
    who: Identity,
    agent: AgentConfig,
    session_id: str | None,
    approval_id: str,
    *,
    awaited: bool,
) -> tuple[ApprovalRecord | None, RunRecord | None]:
    """Return the approval if the caller may use it in this session of the agent, or in any, and the
    workflow's run, if any; for `awaited` see `approval_seen`."""

    def fits(of: ApprovalRecord | RunRecord) -> bool:
        return of.agent == agent.id and session_id in (None, of.session_id)

    record = await approval_seen(bus, who, approval_id, awaited=awaited)
    if record is None:
        return None, None
    if not isinstance(agent, WorkflowAgent):
        return (record if fits(record) else None), None
    for run in reversed(await ancestors_of(bus, record.run_id)):
        if fits(run):
            return record, run
    return None, None


async def approval_of_item(bus: Bus, user_id: str, session: Session, item_id: str) -> str | None:
    # The user's own alias comes first. The alias without a user serves a caller who acts for the
    # run's user. It may belong to any user's run, so the caller of this function must check that
    # the user may see the approval.
    aliases, named = bus.bucket("aliases"), (*session.agents, session.session_id, item_id)
    entry = await aliases.get(key_of("approval", user_id, *named))
    entry = entry or await aliases.get(key_of("approval", *named))
    return orjson.loads(entry.value)["approval_id"] if entry is not None else None


async def paused_runs(bus: Bus, who: Identity, session: Session) -> AsyncIterator[RunRecord]:
    """Yield those that the caller may see, the newest first."""
    for run_id in reversed(await newest_runs(bus, session)):
        if await pause_event(bus, run_id) is None:
            continue
        record = await record_of(bus, run_id)
        if who.may_see_runs_of(record.user_id):
            yield record


async def newest_runs(bus: Bus, session: Session) -> Sequence[str]:
    records = await records_of(bus, session)
    return [run_id for record in records for run_id in record.runs[-NEWEST:]]


async def pause_event(bus: Bus, run_id: str) -> Stored | None:
    lifecycle = await lifecycle_of(bus, run_id)
    return lifecycle if lifecycle is not None and type_of(lifecycle) == _PAUSED else None


async def approval_id_of(bus: Bus, paused: Stored) -> str:
    return str(orjson.loads(await unwrap(bus, paused.payload))["data"].get("approval_id"))


async def _pause_of(bus: Bus, run_id: str) -> Pause | None:
    lifecycle = await lifecycle_of(bus, run_id)
    if lifecycle is None:
        return None
    event_type = type_of(lifecycle)
    if event_type in TERMINAL:
        raise Problem(409, f"run {run_id} is already {event_type.removeprefix('lifecycle.')}")
    if event_type != _PAUSED:
        return None
    approval = await approval_record(bus, await approval_id_of(bus, lifecycle))
    return Pause(approval, await _shown(bus, approval)) if approval is not None else None


async def _shown(bus: Bus, approval: ApprovalRecord) -> Mapping[str, str]:
    pause = await pause_record(bus, approval.run_id)
    if pause is None or pause.approval_id != approval.approval_id or pause.protocol != "agno":
        return {}
    shown = {}
    for item_id, path in pause.resume.get("items", {}).items():
        target: Any = pause.resume
        for step in path:
            target = target[step]
        if isinstance(approval_id := target.get("id"), str):
            shown[approval_id] = item_id
    return shown


# --- The open approvals of a workflow's run


@dataclass(frozen=True, slots=True)
class OpenApproval:
    """An approval without a decision, and its items as clients of the tree see them: a tool call id
    begins with the id of the step's run. `short_ids` maps the ids without this to item ids."""

    approval: ApprovalRecord
    items: list[dict[str, Any]]
    short_ids: Mapping[str, str]

    def find(self, item_id: str) -> dict[str, Any] | None:
        item_id = self.short_ids.get(item_id, item_id)
        named = (
            item for item in self.items if item_id in (item["item_id"], item.get("tool_call_id"))
        )
        return next(named, None)


def approval_of(approvals: Sequence[OpenApproval], ids: Sequence[str]) -> OpenApproval | None:
    """Return the approval of the first id that only one has: two runs may use the same item id."""
    for item_id in ids:
        found = [each for each in approvals if each.find(item_id) is not None]
        if len(found) == 1:
            return found[0]
    return None


async def open_approvals(
    bus: Bus, who: Identity, root: RunRecord, fits: Callable[[list[OpenApproval]], bool]
) -> list[OpenApproval]:
    """Return the open approvals of a workflow's run, the oldest first. This function waits for
    approvals that `fits` accepts, for the same reason as `pause_of`."""
    return await look_until(who.user_id, lambda: _open_approvals(bus, who, root), fits)


async def _open_approvals(bus: Bus, who: Identity, root: RunRecord) -> list[OpenApproval]:
    asked: dict[str, None] = {}
    async for stored in _approval_events(bus, root):
        data = orjson.loads(await unwrap(bus, stored.payload))["data"]
        if type_of(stored) == _REQUESTED:
            asked[data["approval_id"]] = None
        else:
            asked.pop(data.get("approval_id"), None)
    records = await asyncio.gather(*(approval_record(bus, approval_id) for approval_id in asked))
    return [
        _as_seen(record, record.items_for(who.scopes), root.run_id)
        for record in records
        if record is not None and record.status == "pending"
    ]


async def _approval_events(bus: Bus, root: RunRecord) -> AsyncIterator[Stored]:
    start = root.first_event
    if start is None:
        lifecycle = await lifecycle_of(bus, root.run_id)
        if lifecycle is None:
            return
        start = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
    history = history_of_tree(bus, Members(root.run_id), start)
    while batch := await history.before(sys.maxsize):
        for stored in batch:
            if type_of(stored) == _REQUESTED or type_of(stored) in _SETTLED:
                yield stored


def _as_seen(record: ApprovalRecord, items: list[dict[str, Any]], root: str) -> OpenApproval:
    if record.run_id == root:
        return OpenApproval(record, items, {})
    short = {item["tool_call_id"]: item["item_id"] for item in items if _is_call(item)}
    items = [
        {**item, "tool_call_id": f"{record.run_id}/{item['tool_call_id']}"}
        if _is_call(item)
        else item
        for item in items
    ]
    return OpenApproval(record, items, short)


def _is_call(item: Mapping[str, Any]) -> bool:
    return bool(item.get("tool_call_id"))
