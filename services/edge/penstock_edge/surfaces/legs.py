"""Opens legs: what every surface shares whose POST starts a run or answers a pause (decision 0318).

A surface makes a `Start` of its request and a `Reply` of a client's answer, and states as a
`LegForm` how its clients read a leg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import orjson

from penstock.bus import Bus, BusError, ObjectGone, Stored
from penstock.bus.messages import FIRST, SEQUENCE
from penstock.bus.read.direct import read
from penstock.bus.records.approvals import ApprovalRecord, Channel, Decided, DecideRequest
from penstock.bus.records.runs import RunRecord
from penstock.bus.streams import events_for
from penstock.bus.subjects import event, events_of_run, shard_of
from penstock.bus.write.objects import unwrap
from penstock.dialects.answers import UnclearAnswer, decided
from penstock.dialects.approvals import CONFIRMATIONS, parse_question_id
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
from penstock_edge.sources.encode import encode, with_object
from penstock_edge.sources.history import history_of
from penstock_edge.sources.locate import StartPosition, lifecycle_of, locate, start_of_new_run
from penstock_edge.sources.read_run import Allowance, request_allowance
from penstock_edge.stream.responses.pages import NO_END
from penstock_edge.surfaces.errors import shortened
from penstock_edge.views.audience import seen_by
from penstock_edge.views.cursor import Cursor
from penstock_edge.views.encoded_leg import PAUSED, E, LegForm, WholeLeg
from penstock_edge.views.items import type_of
from penstock_edge.views.run_tree import Child
from penstock_edge.views.trees import TreeViews
from penstock_edge.views.view import View

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LegId:
    """Names a leg of a run: by its `number`, or of a workflow's run by the stream sequence `after`
    which it begins. `answered` is as in `Edge.tree`."""

    number: int = 1
    after: int = 0
    answered: tuple[str, ...] = ()


TOO_LARGE: Final = (
    "the run's events are too many or too large for one object; read its stream, or its events by "
    "pages from GET /v1/runs/{run_id}/events"
)
WHOLE_RUN: Final = LegId(NO_END, NO_END)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg(LegId):
    """A leg, and the position from which its clients read. For a workflow's run, `tree` makes the
    view."""

    run_id: str
    position: StartPosition
    tree: TreeViews | None = None

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

    @property
    def pause(self) -> str:
        """The id of what waits: of the workflow's run, or of the approval."""
        return self.root.run_id if self.root is not None else self.approval.approval_id


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
    """A client's answer to items of an approval. `decide` makes the fields of a `Decided` from an
    item, as `penstock.dialects.answers.decided` does, and returns None for an item that is not
    answered. `digest` is the one that the client sent. If no item is answered, the answer is
    refused with `status_if_none`."""

    approval_id: str
    decide: Callable[[JsonObject], JsonObject | None]
    digest: str | None = None
    status_if_none: int = 422

    @classmethod
    def of(cls, question: str, status: str, payload: Any, digest: str | None = None) -> Self:
        """Answer one item by its `question_id`, or all items by the id of their approval."""
        approval_id, item_id = parse_question_id(question)
        answer = {"status": status, "payload": payload}

        def decide(item: JsonObject) -> JsonObject | None:
            return decided(item, answer) if item_id in (None, item["item_id"]) else None

        return cls(approval_id, decide, digest)


async def reply_of(
    bus: Bus,
    who: Identity,
    agent: AgentConfig,
    session_id: str | None,
    where: str,
    sent: Iterable[ClientAnswer],
) -> Reply:
    """Return the answers to approvals that are pending, or else those to the last pause: a client
    repeats its answers to earlier pauses. The approvals are of this session, or of any that the
    caller may see. Problem: 404 for any other approval, 422 for an answer in the field `where` that
    is not clear, and as `ClientAnswer` and `Reply.of`."""
    by_approval: dict[str, list[ClientAnswer]] = {}
    for each in sent:
        by_approval.setdefault(each.approval_id, []).append(each)
    found: list[ItemAnswer] = []
    for approval_id, own in by_approval.items():
        approval, root = await approval_in_session(
            bus, who, agent, session_id, approval_id, awaited=True
        )
        if approval is None:
            raise Problem(404, f"{where}: no approval {shortened(approval_id)!r} is here to decide")
        for each in own:
            items = _decided(approval, each, where)
            found += [ItemAnswer(approval, root, item, each.digest) for item in items]
    pending = [each for each in found if each.approval.status == "pending"]
    return Reply.of(where, pending or [each for each in found if each.pause == found[-1].pause])


def _decided(approval: ApprovalRecord, sent: ClientAnswer, where: str) -> list[Decided]:
    try:
        made = [sent.decide(item) for item in approval.items]
    except UnclearAnswer as unclear:
        raise Problem(422, f"{where}: {unclear}") from unclear
    if not any(made):
        text = f"{where}: the approval {approval.approval_id} does not ask this; look at it again"
        raise Problem(sent.status_if_none, text)
    return [Decided(**fields) for fields in made if fields is not None]


async def begin(edge: Edge, start: Start, *, frames: bool = False) -> tuple[Started, StartPosition]:
    """Start a run; return a position before all its events, or with `frames` its source frames. The
    position is of no use if the request repeats an earlier one (`Started.new`)."""
    if start.run_id is not None:
        shard = shard_of(start.run_id)
    else:
        shard = await edge.starter.shard_for(start.user.user_id, start.session_id)
    position = await start_of_new_run(edge.bus, shard, frames=frames)
    start = replace(start, shard=shard, reads_frames=frames)
    return await edge.starter.start(start), position


async def first_leg(edge: Edge, start: Start, *, frames: bool = False) -> tuple[Started, Leg]:
    """Start a run; return its first leg, also if the request repeats an earlier one, but then not
    of source frames. Problem: as `locate`, for a repeated request."""
    started, position = await begin(edge, start, frames=frames)
    run_id = started.record.run_id
    tree = edge.tree(run_id) if is_workflow(started.record) else None
    if not started.new:
        view = edge.view(run_id, "canonical", children=tree is not None)
        position = await locate(edge.bus, view, None)
    return started, Leg(run_id=run_id, position=position, tree=tree)


async def next_leg(edge: Edge, reply: Reply, *, frames_for: Identity | None = None) -> Leg:
    """Return the leg that the reply begins; call this before `decide`, so that no event is missed,
    and nothing is decided for who may not read the answer. With `frames_for`, this caller reads it
    from after all stored source frames, else it is read from the run's first event, because the
    encoders of legs need all earlier events. Problem: as `Hubs.require_frames`."""
    if reply.root is not None:
        answered = [each.approval.approval_id for each in reply.answers]
        return await _next_leg_of_tree(edge, reply.root, answered)
    approval, bus = reply.answers[0].approval, edge.bus
    frames = frames_for is not None
    if frames_for is not None:
        await edge.hubs.require_frames(approval.run_id, frames_for)
    lifecycle = await lifecycle_of(bus, approval.run_id)
    position = await start_of_new_run(bus, shard_of(approval.run_id), frames=frames)
    if lifecycle is not None and frames:
        # The run's terminal event comes after the pause, so the source looks for the terminal event
        # from the pause on.
        position = replace(position, events_start=lifecycle.sequence)
    elif lifecycle is not None:
        position = _first_event(lifecycle)
    return Leg(approval.leg + 1, run_id=approval.run_id, position=position)


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
    tree = edge.tree(run_id, known, answered)
    return Leg(number, after, tuple(answered), run_id=run_id, position=position, tree=tree)


@dataclass(frozen=True, slots=True)
class Newest(LegId):
    """The leg of a run that ends with the pause that `waits` for a decision, or else with the next
    pause or the run's end. This end comes after the stream sequence `after`."""

    waits: bool = False


async def newest_leg(edge: Edge, run_id: str) -> Newest:
    lifecycle = await lifecycle_of(edge.bus, run_id)
    if lifecycle is None:
        return Newest()
    event = orjson.loads(await unwrap(edge.bus, lifecycle.payload))
    waits = type_of(lifecycle) == PAUSED and await _is_pending(edge, event)
    # A pause that is over does not end the stream, even if the run has not resumed yet.
    is_over = type_of(lifecycle) in TERMINAL or (type_of(lifecycle) == PAUSED and not waits)
    return Newest(event["leg"] + is_over, lifecycle.sequence - waits, waits=waits)


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
    view, place = await located(edge, record, form, after, last, replays=True)
    return view, replace(place, ended=place.ended or last.waits)


async def located(
    edge: Edge,
    record: RunRecord,
    form: LegForm[E],
    after: Cursor | None,
    leg: LegId,
    *,
    replays: bool = False,
) -> tuple[View, StartPosition]:
    """Return the view of a leg that has begun, or will begin, and where a client reads that has
    everything up to the cursor `after`. `replays` is as in `LegForm.view`. Problem: as `locate`."""

    def view(known: tuple[Child, ...] = ()) -> View:
        if is_workflow(record):
            tree = edge.tree(record.run_id, known, leg.answered)
            return tree.leg(form, leg.after, replays=replays)
        return form.view(record.run_id, leg.number, replays=replays)

    found = view()
    place = await locate(edge.bus, found, after, record)
    if place.truncated and found.reads_tree:
        found = view(await unfinished_descendants(edge.run_list, record))
    return found, place


async def read_stored(
    edge: Edge,
    who: Identity,
    record: RunRecord,
    form: LegForm[WholeLeg[E]],
    leg: LegId = WHOLE_RUN,
    end: int = NO_END,
    allowance: Allowance | None = None,
) -> tuple[E, int]:
    """Return the encoder of an object when it has read the stored events of a run up to the end of
    the leg, and before the stream sequence `end`; and the sequence of the last one, 0 if there is
    none. Problem: as `locate`, and 422 for more events than the allowance, by default that of one
    request."""
    allowance = allowance or request_allowance()
    whole = WholeLeg(form.encoder().encoder, lambda _: b"")
    form = replace(form, encoder=lambda: whole)
    view, position = await located(edge, record, form, None, leg, replays=True)
    view = seen_by(who, view)
    encoding, last = view.encoding(), 0
    for stored in position.erased:
        await encode(edge.bus, view, encoding, stored)
    if position.erased:
        return whole.encoder, position.erased[-1].sequence
    history = history_of(edge.bus, view, None, position.start, edge.turns.for_caller(who))
    while batch := await history.before(end):
        for each in batch:
            if allowance.is_spent:
                raise Problem(422, TOO_LARGE)
            stored = each
            with suppress(BusError, ObjectGone):  # `encode` makes a notice of it
                stored = await with_object(edge.bus, each)
            allowance.spend(1, len(stored.payload))
            item, last = await encode(edge.bus, view, encoding, stored), stored.sequence
            if item.last:
                return whole.encoder, last
    return whole.encoder, last


async def _is_pending(edge: Edge, paused: JsonObject) -> bool:
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
        _require_seen(who, answer)  # of each, before one is sent
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


def _require_seen(who: Identity, answer: Answer) -> None:
    """Refuse changed arguments of who has seen only masked ones: the call would run with tokens
    such as `[EMAIL_1]` in them."""
    approval = answer.approval
    whole = {item["item_id"]: item for item in approval.items}
    for seen in approval.items_for(who.scopes):
        item = whole.get(seen["item_id"], seen)
        if seen.get("args") == item.get("args") or item["kind"] not in CONFIRMATIONS:
            continue
        for each in answer.items:
            changes = each.value is not None or each.args is not None
            if each.item_id == item["item_id"] and changes:
                raise Problem(
                    422,
                    f"item {each.item_id}: you see its arguments masked, so approve or reject it "
                    "without changes, or change them by POST /v1/approvals/{id}/decision",
                    code="masked",
                )
