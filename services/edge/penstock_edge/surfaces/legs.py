"""Opens legs: what every surface shares whose POST starts a run or answers a pause (decision 0318).

A surface makes a `Start` of its request and a `Reply` of a client's answer, and states as a
`LegForm` how its clients read a leg.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from penstock.bus import Bus, Stored
from penstock.bus.messages import FIRST, SEQUENCE
from penstock.bus.read.direct import read
from penstock.bus.records import ApprovalRecord, Channel, Decided, DecideRequest, RunRecord
from penstock.bus.streams import events_for
from penstock.bus.subjects import event, events_of_run, shard_of
from penstock.bus.write.objects import unwrap
from penstock.dialects.answers import UnclearAnswer, decided
from penstock.dialects.approvals import parse_question_id
from penstock.events.catalogue import TERMINAL
from penstock.runs.decide import forward_decision
from penstock.runs.start import Start, Started
from penstock.service.deciders import decider_of
from penstock.settings import AgentConfig
from penstock.web.auth import Identity
from penstock.web.problems import Problem
from penstock_edge.edge import Edge
from penstock_edge.runs.pauses import approval_in_session, approval_record
from penstock_edge.runs.records import is_workflow, unfinished_descendants
from penstock_edge.sources.locate import StartPosition, lifecycle_of, locate, start_of_new_run
from penstock_edge.surfaces.errors import shortened
from penstock_edge.views.cursor import Cursor
from penstock_edge.views.encoded_leg import PAUSED, E, LegForm
from penstock_edge.views.items import type_of
from penstock_edge.views.run_tree import Child
from penstock_edge.views.trees import TreeViews
from penstock_edge.views.view import View


@dataclass(frozen=True, slots=True)
class Leg:
    """A leg, and the position from which its clients read. For a workflow's run, `tree` makes the
    view, of the events after the stream sequence `after`."""

    run_id: str
    number: int
    position: StartPosition
    tree: TreeViews | None = None
    after: int = 0

    def view(self, form: LegForm[E]) -> View:
        if self.tree is not None:
            return self.tree.leg(form, self.after)
        return form.view(self.run_id, self.number)


@dataclass(frozen=True, slots=True)
class Answer:
    """A client's decisions on items of one approval. `digest` is the digest that the client sent,
    on a surface whose clients send one."""

    approval: ApprovalRecord
    items: list[Decided] = field(default_factory=list)
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """A client's decision on one item. `root` is the workflow's run that waits for the approval, if
    one does."""

    approval: ApprovalRecord
    root: RunRecord | None
    decided: Decided
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answers in one request: one, or several to the open approvals of the workflow `root`."""

    answers: Sequence[Answer]
    root: RunRecord | None = None

    @classmethod
    def of(cls, where: str, answers: Iterable[ItemAnswer]) -> Reply:
        """Join the answers to the items of each approval. Problem 422, about the field `where`:
        they belong to several pauses, but not of one workflow, or one pause has two digests."""
        by_approval: dict[str, Answer] = {}
        roots: dict[str, RunRecord] = {}
        for each in answers:
            approval, digest = each.approval, each.digest
            answer = by_approval.setdefault(approval.approval_id, Answer(approval, digest=digest))
            if answer.digest != digest:
                raise Problem(422, f"{where}: the answers to one pause have different digests")
            answer.items.append(each.decided)
            if each.root is not None:
                roots[each.root.run_id] = each.root
        if len(roots or by_approval) > 1:
            raise Problem(422, f"{where}: the answers belong to different pauses")
        return cls(list(by_approval.values()), next(iter(roots.values()), None))


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """A client's answer to a question: the id of an item (`question_id`), or of an approval, for
    all its items. `answer` has a `status` and a `payload`, as `penstock.dialects.answers` reads
    them, and `digest` is the one that the client sent."""

    question: str
    answer: dict[str, Any]
    digest: str | None = None


async def reply_of(
    bus: Bus,
    who: Identity,
    agent: AgentConfig,
    session_id: str,
    where: str,
    sent: Iterable[ClientAnswer],
) -> Reply:
    """Return the answers to approvals that are pending, if any: a client repeats its answers to
    earlier pauses. Problem: 404 for a question that the session does not have, 422 for an answer in
    the field `where` that is not clear, and as `Reply.of`."""
    by_approval: dict[str, list[ClientAnswer]] = {}
    for each in sent:
        by_approval.setdefault(parse_question_id(each.question)[0], []).append(each)
    found: list[ItemAnswer] = []
    for approval_id, own in by_approval.items():
        approval, root = await approval_in_session(
            bus, who, agent, session_id, approval_id, awaited=True
        )
        if approval is None:
            text = f"nothing in this session asks {shortened(own[0].question)!r}"
            raise Problem(404, text)
        for each in own:
            items = _decided(approval, each, where)
            found += [ItemAnswer(approval, root, item, each.digest) for item in items]
    pending = [each for each in found if each.approval.status == "pending"]
    return Reply.of(where, pending or found[-1:])


def _decided(approval: ApprovalRecord, sent: ClientAnswer, where: str) -> list[Decided]:
    _, item_id = parse_question_id(sent.question)
    items = [each for each in approval.items if item_id in (None, each["item_id"])]
    if not items:
        raise Problem(422, f"{where}: there is no question {shortened(sent.question)!r}")
    try:
        return [Decided(**decided(item, sent.answer)) for item in items]
    except UnclearAnswer as unclear:
        raise Problem(422, f"{where}: {unclear}") from unclear


async def begin(edge: Edge, start: Start, *, frames: bool = False) -> tuple[Started, StartPosition]:
    """Start a run; return a position before all its events, or with `frames` its source frames. The
    position is of no use if the request repeats an earlier one (`Started.new`)."""
    if start.run_id is not None:
        shard = shard_of(start.run_id)
    else:
        shard = await edge.starter.shard_for(start.user.user_id, start.session_id)
    position = await start_of_new_run(edge.bus, shard, frames=frames)
    return await edge.starter.start(replace(start, shard=shard)), position


async def first_leg(edge: Edge, start: Start, *, frames: bool = False) -> tuple[Started, Leg]:
    started, position = await begin(edge, start, frames=frames)
    run_id = started.record.run_id
    tree = edge.tree(run_id) if is_workflow(started.record) else None
    return started, Leg(run_id, 1, position, tree)


async def next_leg(edge: Edge, reply: Reply, *, frames: bool = False) -> Leg:
    """Return the leg that the reply begins; call this before `decide`, so that no event is missed.
    With `frames`, it is read from after all stored source frames, else from the run's first event,
    because the encoders of legs need all earlier events."""
    if reply.root is not None:
        answered = [each.approval.approval_id for each in reply.answers]
        return await _next_leg_of_tree(edge, reply.root, answered)
    approval, bus = reply.answers[0].approval, edge.bus
    lifecycle = await lifecycle_of(bus, approval.run_id)
    position = await start_of_new_run(bus, shard_of(approval.run_id), frames=frames)
    if lifecycle is not None and frames:
        # The run's terminal event comes after the pause, so the source looks for the terminal event
        # from the pause on.
        position = replace(position, events_start=lifecycle.sequence)
    elif lifecycle is not None:
        position = _first_event(lifecycle)
    return Leg(approval.run_id, approval.leg + 1, position)


async def _next_leg_of_tree(edge: Edge, root: RunRecord, answered: Sequence[str]) -> Leg:
    bus, run_id, number = edge.bus, root.run_id, 2
    lifecycle = await lifecycle_of(bus, run_id)
    if lifecycle is None:
        position = await start_of_new_run(bus, shard_of(run_id))
        after, is_whole = position.start - 1, False
    else:
        position, after = _first_event(lifecycle), lifecycle.sequence
        stream, first = events_for(run_id), position.start
        resumed, pending = await read(bus, stream, event("lifecycle.resumed", run_id), first, 1)
        begun, _ = await read(bus, stream, events_of_run(run_id), first, 1)
        is_whole = bool(begun) and begun[0].headers[SEQUENCE] == "1"
        number += len(resumed) + pending
    known = () if is_whole else await unfinished_descendants(edge.run_list, root)
    return Leg(run_id, number, position, edge.tree(run_id, known, answered), after)


@dataclass(frozen=True, slots=True)
class Newest:
    """The leg of a run that ends with the pause that `waits` for a decision, or else with the next
    pause or the run's end. This end comes after the stream sequence `after`. Without a workflow,
    `number` is the leg's."""

    number: int = 1
    after: int = 0
    waits: bool = False


async def newest_leg(edge: Edge, run_id: str) -> Newest:
    lifecycle = await lifecycle_of(edge.bus, run_id)
    if lifecycle is None:
        return Newest()
    event = orjson.loads(await unwrap(edge.bus, lifecycle.payload))
    waits = type_of(lifecycle) == PAUSED and await _is_pending(edge, event)
    # A pause that is over does not end the stream, even if the run has not resumed yet.
    is_over = type_of(lifecycle) in TERMINAL or (type_of(lifecycle) == PAUSED and not waits)
    return Newest(event["leg"] + is_over, lifecycle.sequence - waits, waits)


async def replay(
    edge: Edge,
    record: RunRecord,
    form: LegForm[E],
    after: Cursor | None,
    newest: Newest | None = None,
) -> tuple[View, StartPosition]:
    """Return the run from its first frame or the cursor on, to the pause that waits now, or else to
    the next pause or the run's end. Problem: as `locate`."""
    last = newest or await newest_leg(edge, record.run_id)
    view, place = await located(
        edge, record, form, after, number=last.number, after_event=last.after, replays=True
    )
    return view, replace(place, ended=place.ended or last.waits)


async def located(
    edge: Edge,
    record: RunRecord,
    form: LegForm[E],
    after: Cursor | None,
    *,
    number: int,
    after_event: int = 0,
    answered: Iterable[str] = (),
    replays: bool = False,
) -> tuple[View, StartPosition]:
    """Return the view of a leg that has begun, or will begin: of the leg `number`, or for a
    workflow's run from after the stream sequence `after_event`. Return also where a client reads
    that has everything up to the cursor `after`. `answered` is as in `Edge.tree`, and `replays` as
    in `LegForm.view`. Problem: as `locate`."""

    def view(known: tuple[Child, ...] = ()) -> View:
        if is_workflow(record):
            tree = edge.tree(record.run_id, known, answered)
            return tree.leg(form, after_event, replays=replays)
        return form.view(record.run_id, number, replays=replays)

    found = view()
    place = await locate(edge.bus, found, after, record)
    if place.truncated and found.reads_tree:
        found = view(await unfinished_descendants(edge.run_list, record))
    return found, place


async def _is_pending(edge: Edge, paused: dict[str, Any]) -> bool:
    approval = await approval_record(edge.bus, str(paused["data"].get("approval_id")))
    return approval is None or approval.status == "pending"


def _first_event(lifecycle: Stored) -> StartPosition:
    first = int(lifecycle.headers.get(FIRST, lifecycle.sequence))
    return StartPosition(first, first)


async def decide(
    edge: Edge,
    who: Identity,
    surface: Channel,
    reply: Reply,
    *,
    user_id: str,
    invocation_id: str | None = None,
    key: str | None = None,
) -> None:
    """Decide each answer at the approvals service. Problem: it refused one, but has accepted each
    earlier answer. BusError: an answer was not sent. A repeat with the same `key` decides once."""
    for answer in reply.answers:
        approval = answer.approval
        request = DecideRequest(
            decider=decider_of(who, surface, user_id),
            # The client has seen only the event approval.requested, not later edits of the items.
            # So the decision has the digest of the items as they were requested. If the items were
            # edited since, the approvals service refuses the decision.
            digest=answer.digest or approval.requested_digest or approval.digest,
            items=answer.items,
            invocation_id=invocation_id,
            idempotency_key=key,
        )
        await forward_decision(edge.bus, approval.approval_id, request)
