"""Record requests for approval, take decisions, and withdraw requests of ended runs.

A decision is a compare-and-set of the approval's record. So only one decision is taken. Every later
request gets the record with this decision. The outbox sends the decision to the connector or to the
workflows service, even if the process that took the decision has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

import orjson

from penstock import telemetry
from penstock.budgets.admission import CurrentBudgets
from penstock.bus import Bus, Stored, masking
from penstock.bus.records.approvals import (
    ApprovalRecord,
    Decider,
    DecideReply,
    DecideRequest,
    Deciders,
    Decision,
)
from penstock.bus.records.runs import ENDED, RunRecord
from penstock.bus.streams import events_for
from penstock.bus.subjects import events_of_run, key_of
from penstock.bus.write import objects
from penstock.bus.write.fence import tail
from penstock.documents.fields import DecidersOf
from penstock.events import TERMINAL
from penstock.expressions import TooMuch
from penstock.lookups import look_until
from penstock.off_loop import OFF_LOOP
from penstock.turns import TenantUser
from penstock_approvals.audit.trail import ApprovalAudit
from penstock_approvals.inbox.listing import ApprovalList
from penstock_approvals.lifecycle.deadlines import Deadlines
from penstock_approvals.lifecycle.ends import RunEnds, pause_of
from penstock_approvals.lifecycle.outbox import Outbox
from penstock_approvals.outcomes.automatic import (
    as_expired,
    as_ruled,
    expiring_at_most,
    is_late,
    reached_count,
)
from penstock_approvals.outcomes.votes import (
    VoteRefused,
    is_same_request,
    items_as_requested,
    with_vote,
)
from penstock_approvals.policy.deciding_rights import person_of
from penstock_approvals.policy.rulings import (
    Policy,
    Question,
    Ruling,
    StepTerms,
    asked_by_budget,
)
from penstock_approvals.policy.trial import compared
from penstock_approvals.runs.announcements import Announcements
from penstock_approvals.runs.events import WORKFLOWS, Event, request_events
from penstock_approvals.store.policies import Policies
from penstock_approvals.store.records import ApprovalRecords, StoredApproval

log = logging.getLogger(__name__)

# A function that returns the pending record with a person's change, made at the time that is the
# third argument, or raises VoteRefused.
Amendment = Callable[[ApprovalRecord, Decider, str], ApprovalRecord]

LOOP_STEPS: Final = 5_000  # the most steps of a policy's conditions on the event loop


class Approvals:
    """Handles events, and decisions that come over NATS or over HTTP."""

    def __init__(
        self,
        bus: Bus,
        pod: str,
        audit: ApprovalAudit | None = None,
        policies: Policies | None = None,
        budgets: CurrentBudgets | None = None,
        *,
        require_digest: bool = False,
    ) -> None:
        self._bus = bus
        self._policies = policies or Policies(bus)
        self._budgets = budgets or CurrentBudgets(bus)
        self._require_digest = require_digest
        self._deadlines = Deadlines(bus)
        self.records = ApprovalRecords(bus)
        self._announcements = Announcements(bus, pod)
        self.audit = audit or ApprovalAudit(bus)
        self.outbox = Outbox(
            bus,
            records=self.records,
            announcements=self._announcements,
            audit=self.audit,
            deadlines=self._deadlines,
        )
        self._ends = RunEnds(
            bus,
            records=self.records,
            announcements=self._announcements,
            audit=self.audit,
            deadlines=self._deadlines,
        )
        self.list = ApprovalList(bus, self.records)
        # Awaited before a pending approval is changed: NATS may have lost that it was decided.
        self.after_losses: Callable[[], Awaitable[None]] = _nothing

    async def on_event(self, stored: Stored) -> None:
        """Handle an event: a request for approval, a workflow's withdrawal, the end of a run, or
        the erasure of its content.

        A repeat changes nothing.

        Raises:
            LookupError: the run has no record.
            UnreadableRecord: the approval's record cannot be parsed.
            BusError: the bus does not answer.
        """
        body = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        match body["event"]:
            case {"category": "approval", "action": "requested"}:
                await self._on_requested(stored, body)
            case {"category": "approval", "action": "withdrawn"}:
                await self._ends.withdraw_for_workflow(body["data"])
            case {"category": "system"}:
                await self.audit.erased(body)
            case _:
                await self._ends.ended(body["run_id"])

    async def ask_again(self, stored: Stored) -> None:
        """Record again an event's request whose record NATS has lost. Raises as `on_event`.

        People are asked even if the current policy would decide automatically, because people were
        asked before.
        """
        body = orjson.loads(await objects.unwrap(self._bus, stored.payload))
        await self._on_requested(stored, body, again=True)

    async def on_due(self, approval_id: str) -> None:
        """Record and announce each escalation and reminder whose time has come, or the end of an
        approval whose deadline has passed.

        A repeat changes nothing. After an outage, all steps that were reached are announced, in
        their order. After the deadline, no step is announced, because nobody can decide any more.

        Raises:
            UnreadableRecord, ObjectGone: the record cannot be read.
            BusError: the bus does not answer.
        """
        await self.after_losses()
        await self._bus.clock.refresh()
        earlier: list[Event] | None = None  # the events of the record before this call
        while (stored := await self.records.find(approval_id)) is not None:
            record, now = stored.record, self._bus.clock.now()
            if record.status != "pending":
                break
            earlier = request_events(record) if earlier is None else earlier
            if is_late(record, now):
                await self._expire(stored)
            elif (escalated := reached_count(record, now)) > record.escalated:
                update = {"escalated": escalated, "updated_at": self._bus.clock.stamp()}
                if await self.records.replace(stored, record.model_copy(update=update)):
                    for step in record.escalations[record.escalated : escalated]:
                        what = f"was escalated to {_names(step.to)}" if step.to else "is reminded"
                        log.info("run %s: approval %s %s", record.run_id, approval_id, what)
            else:
                await self.audit.follow(record)  # writes an entry for each step
                paused, *steps = request_events(record)
                # A process that ended may have recorded steps and not announced them. Without a new
                # step, all are announced: the normalizer ignores those that it has.
                new = steps[len(earlier) - 1 :] or steps
                earlier = [paused, *steps[: len(steps) - len(new)]]
                await self._announcements.announce(record, *new, earlier=earlier)
                # The message may have come too early, because the clock of another server was fast.
                # The message is then used up, and nothing would happen at the time of the
                # escalation or the deadline. So messages for all later times are scheduled again.
                await self._deadlines.schedule(record, after=now)
                return
        await self.outbox.send_on(approval_id)

    async def _expire(self, stored: StoredApproval) -> None:
        """Record that the deadline has passed, unless the record has changed since it was read."""
        record = stored.record
        await self.outbox.open(record.approval_id)
        if await self.records.replace(stored, as_expired(record, self._bus.clock.stamp())):
            telemetry.DECISIONS.labels("expired").inc()
            text = "run %s: approval %s has expired; on_deadline: %s"
            log.info(text, record.run_id, record.approval_id, record.on_deadline)

    async def _on_requested(
        self, stored: Stored, masked: dict[str, Any], *, again: bool = False
    ) -> None:
        """Record the request with the policy's ruling; then ask people, or send the decision.

        People decide about what the agent asks for. `masked` is the event as others get it.
        """
        opened = await objects.unwrapped(self._bus, stored)
        body = orjson.loads(masking.whole(opened))
        data = body["data"]
        run_id, approval_id = str(body["run_id"]), data["approval_id"]
        run = await self._run(run_id)
        if run.erasure is not None:
            return  # the run has ended, and its record would be content
        record = ApprovalRecord(
            approval_id=approval_id,
            run_id=run_id,
            agent=run.agent,
            session_id=run.session_id,
            user_id=run.user_id,
            started_by=run.started_by,
            leg=int(str(body["leg"])),
            digest=data["digest"],
            target=run.target,
            items=data["items"],
            masked_items=masked["data"]["items"] if run.masked or opened.unmasked else None,
            requested_at=str(body["timestamp"]),
            updated_at=str(body["timestamp"]),
            traceparent=stored.headers.get("traceparent"),
        )
        if record.is_of_workflow:
            record.step_need = int(data.get("deciders_required") or 1)
            record.step_deciders = data.get("deciders")
        saved = await self.records.get(approval_id)
        if saved is None:
            if record.target == WORKFLOWS:
                await self._ends.note(run_id, approval_id)
            saved = await self._record(record, run, ask=again, until=data.get("expires_at"))
        await self._ends.record_executed_calls(run_id)
        await self.audit.follow(saved)
        if saved.status == "pending":
            for item in saved.items:
                await self._point_to(saved, run, item["item_id"])
            await self._deadlines.schedule(saved)
            await self._announcements.announce(saved, *request_events(saved))
            has_messages = saved.expires_at or saved.escalations
            current = await self.records.get(approval_id) if has_messages else saved
            if current is not None and current.status != "pending":
                # Somebody decided before the messages were scheduled. Nothing else would cancel
                # the messages.
                await self._deadlines.cancel(current)
        elif saved.status == "decided" and saved.decision is not None and saved.decision.automatic:
            await self.outbox.send_on(approval_id)
        last = await tail(self._bus, events_for(run_id), events_of_run(run_id))
        if last is not None and last.headers.get("ce-type") in TERMINAL:
            # The run ended while the request was being recorded. If the run's terminal event was
            # handled before the record existed, nothing else would withdraw the request.
            await self._ends.ended(run_id, is_workflow=record.target == WORKFLOWS)
        elif record.target == WORKFLOWS:
            await self._ends.apply_earlier_withdrawal(saved)

    async def _record(
        self, record: ApprovalRecord, run: RunRecord, *, ask: bool, until: str | None
    ) -> ApprovalRecord:
        """Write and return the first record of a request, unless another process was first.

        With `ask`, people are asked even if the policy would decide. `until` is the time until
        which the run waits; None if it waits for ever.
        """
        if record.is_of_budget:
            ruling = asked_by_budget(record.items, self._budgets.current, self._bus.clock.now())
        else:
            policy, now = self._policies.current, self._bus.clock.now()
            question, _ = await self._question(policy, record, run, now)
            ruling = await self._ruling(policy, question, run.tenant_user)
        for result in ruling.results:
            for error in result.errors:
                telemetry.POLICY_ERRORS.labels(error.rule_id).inc()
                log.warning("run %s: rule %s: %s", record.run_id, error.rule_id, error.reason)
        terms = ruling.fields()
        if ruling.is_automatic and ask:
            del terms[
                "deciders"
            ]  # the policy asks nobody, so the requester is asked, as by default
        asked = expiring_at_most(record.model_copy(update=terms), until)
        if ruling.is_automatic and not ask:
            asked = as_ruled(asked, self._bus.clock.stamp())
            # If this process ends after it has recorded the decision, another process finds this
            # entry and sends the decision.
            await self.outbox.open(record.approval_id)
        if await self.records.create(asked):
            log.info("run %s: approval %s: %s", record.run_id, record.approval_id, ruling.outcome)
            if asked.decision is not None:
                telemetry.DECISIONS.labels(asked.decision.outcome).inc()
            return asked
        return await self.records.get(record.approval_id) or asked

    async def try_policy(self, policy: Policy, last: int, user: TenantUser) -> dict[str, Any]:
        """Return what a policy would have said of the last requests, at the time of each. Requests
        of budgets are left out, since no policy rules on them. Raises BusError."""
        results: list[dict[str, Any] | None] = []
        incomplete = 0
        for record in await self.list.newest(last):
            if record.is_of_budget:
                continue
            run = await self._bus.bucket("runs").load(record.run_id, RunRecord)
            asked = record.model_copy(update={"items": items_as_requested(record)})
            at = datetime.fromisoformat(record.requested_at)
            question, is_complete = await self._question(policy, asked, run, at)
            incomplete += not is_complete
            results.append(compared(record, await self._ruling(policy, question, user)))
        otherwise = [each for each in results if each is not None]
        return {"tried": len(results), "incomplete": incomplete, "otherwise": otherwise}

    async def _ruling(self, policy: Policy, question: Question, user: TenantUser) -> Ruling:
        try:
            return policy.outcome_of(question, LOOP_STEPS)
        except TooMuch:
            return await OFF_LOOP.run(user, partial(policy.outcome_of, question))

    async def _question(
        self, policy: Policy, record: ApprovalRecord, run: RunRecord | None, now: datetime
    ) -> tuple[Question, bool]:
        """Return the facts of a pause that the policy reads, and whether all are known."""
        protocol = "workflow" if record.is_of_workflow else ""
        is_complete = run is not None
        if not protocol and policy.reads("protocol"):
            pause = await pause_of(self._bus, record.run_id)
            protocol = pause.protocol if pause is not None else ""
            is_complete = is_complete and pause is not None
        facts: dict[str, Any] = {"run": {"id": record.run_id}}
        if run is not None:
            facts = {
                "roles": run.roles or (),
                "depth": run.depth or 0,
                "run": {"id": run.run_id, "input": run.message, "created_at": run.created_at},
            }
        question = Question(
            agent=record.agent,
            user=record.user_id,
            items=record.items,
            now=now,
            session_id=record.session_id,
            protocol=protocol,
            started_by=record.started_by or (),
            step=_step_terms(record),
            **facts,
        )
        return question, is_complete

    async def _point_to(self, record: ApprovalRecord, run: RunRecord, item_id: str) -> None:
        """Write the aliases by which an answer in an upstream's protocol finds the approval."""
        named = (run.agent, run.session_id, item_id)
        pointer = {
            "approval_id": record.approval_id,
            "run_id": record.run_id,
            "leg": record.leg,
            "item_id": item_id,
        }
        # Two users may give their sessions the same id, so the first key contains the owner. A
        # caller that acts for the owner finds the second key.
        for alias in (key_of("approval", run.user_id, *named), key_of("approval", *named)):
            await self._bus.bucket("aliases").put(alias, orjson.dumps(pointer))

    async def withdraw_if_ended(self, record: ApprovalRecord) -> None:
        """Withdraw a request whose run has ended, even if the record of the run's pause is lost.
        Raises LookupError if the run has no record, and BusError."""
        if (await self._run(record.run_id)).status in ENDED:
            await self._ends.withdraw(record)
        elif record.target == WORKFLOWS:
            await self._ends.apply_earlier_withdrawal(record)

    async def restore_outcome(
        self, approval_id: str, decision: Decision | None, expiry_reason: str | None = None
    ) -> bool:
        """Record again how an approval ended, after NATS has lost the end; return False if the
        approval is not pending, or has changed meanwhile.

        `expiry_reason` is the reason of an approval whose deadline had passed, else None. The
        decision is not sent here, because the outbox sent it before the loss. If NATS has lost the
        command, the connector's watchdog sends the command once more.
        """
        stored = await self.records.find(approval_id)
        if stored is None or stored.record.status != "pending":
            return False
        update = {
            "status": "expired" if expiry_reason else "decided",
            "reason": expiry_reason,
            "decision": decision,
            "updated_at": decision.at if decision is not None else self._bus.clock.stamp(),
        }
        return await self.records.replace(stored, stored.record.model_copy(update=update))

    async def shown_to(
        self, caller: str, approval_id: str, sees: Callable[[ApprovalRecord], bool]
    ) -> ApprovalRecord | None:
        """Return the record of an approval that the caller sees; None if there is none.

        A client may ask for an approval before its record is written. So this method waits for the
        record, as `look_until` describes. It also waits if the caller may not see the approval.
        Otherwise the time of the answer would tell the caller that the approval exists. Raises what
        `ApprovalRecords.get` raises.
        """
        # A client can send any text, and the text may have characters that NATS allows in no key.
        if not (approval_id.replace("-", "").isalnum() and approval_id.isascii()):
            return None
        record = await look_until(
            caller,
            partial(self.records.get, approval_id),
            lambda found: found is not None and sees(found),
        )
        return record if record is not None and sees(record) else None

    async def take_vote(self, approval_id: str, request: DecideRequest) -> DecideReply:
        """Count a person's vote. If no more votes are needed, take the approval's decision.

        Refuses, in this order: 404 if there is no such approval; 409 if it is not pending or its
        deadline has passed; then as `outcomes.votes.with_vote` does.

        The deadline is compared with the clock of the NATS server. This method does not send the
        decision; the caller must call `outbox.send_on` afterwards. If the process ends before this
        call, another process finds the decision's entry in the outbox. The request may come before
        the approval's record is written, so this method waits for the record.

        Raises:
            UnreadableRecord, ObjectGone: the record cannot be read.
            BusError: the bus does not answer, so it is unknown whether the decision was taken.
        """
        count, ended = partial(self._count, request=request), partial(_not_pending, request=request)
        return await self._on_pending(approval_id, request.decider, count, ended)

    async def amend(self, approval_id: str, who: Decider, change: Amendment) -> DecideReply:
        """Change a pending approval without a decision, and announce the change.

        `change` returns the new record, or the same if it repeats an earlier change; the record is
        then announced again. If the process ends after the write, another process finds the entry
        in the outbox, and announces the change.

        Refuses, in this order: 404 and 409 as `take_vote`; then as `change` does. Raises as
        `take_vote`.
        """

        async def attempt(stored: StoredApproval) -> DecideReply | None:
            record = stored.record
            try:
                changed = change(record, who, self._bus.clock.stamp())
            except VoteRefused as refused:
                return DecideReply(status=refused.status, detail=str(refused), approval=record)
            if changed is record:
                await self.outbox.announce(record)
                return DecideReply(status=200, approval=record)
            # Whoever decides writes the entry again after this change, so `close` leaves it.
            entry = await self.outbox.open(approval_id)
            if not await self.records.replace(stored, changed):
                return None
            await self.outbox.announce(changed)
            await self.outbox.close(approval_id, entry)
            return DecideReply(status=200, approval=changed)

        return await self._on_pending(approval_id, who, attempt, _refusal_of_ended)

    async def _on_pending(
        self,
        approval_id: str,
        who: Decider,
        attempt: Callable[[StoredApproval], Awaitable[DecideReply | None]],
        ended: Callable[[ApprovalRecord], DecideReply],
    ) -> DecideReply:
        """Return the reply of `attempt` on the pending record, which is called again while it
        returns None; the reply of `ended` on a record that has ended."""
        await self.after_losses()
        while True:
            stored = await look_until(
                person_of(who),
                partial(self.records.find, approval_id),
                lambda found: found is not None,
            )
            if stored is None:
                return DecideReply(status=404, detail=f"there is no approval {approval_id}")
            if stored.record.status != "pending":
                return ended(stored.record)
            if stored.record.expires_at is not None:
                # After this machine was suspended, its estimate of the server's clock is wrong.
                await self._bus.clock.refresh()
                if is_late(stored.record, self._bus.clock.now()):
                    await self._expire(stored)
                    continue
            reply = await attempt(stored)
            if reply is not None:
                return reply

    async def _count(self, stored: StoredApproval, *, request: DecideRequest) -> DecideReply | None:
        """Count the vote; return None if the record has changed and must be read again."""
        record = stored.record
        now = self._bus.clock.stamp()
        try:
            voted = with_vote(record, request, now, require_digest=self._require_digest)
        except VoteRefused as refused:
            return DecideReply(status=refused.status, detail=str(refused), approval=record)
        if voted is record:
            # The process that counted the vote may have ended before it wrote the vote to the
            # audit.
            await self.audit.follow(record)
            return DecideReply(status=200, approval=record)
        if voted.status == "decided":
            await self.outbox.open(record.approval_id)
        if not await self.records.replace(stored, voted):
            return None
        who = voted.votes[-1].by
        if voted.decision is None:
            votes = sum(not vote.void for vote in voted.votes)
            text = "run %s: %s has voted on approval %s: %d of %d votes"
            log.info(text, record.run_id, who, record.approval_id, votes, voted.need)
            await self.audit.follow(voted)
        else:
            telemetry.DECISIONS.labels(voted.decision.outcome).inc()
            by, acts_for = request.decider.name, request.decider.on_behalf_of
            on_behalf = f" on behalf of {acts_for}" if acts_for else ""
            log.info("run %s: %s by %s%s", record.run_id, voted.decision.outcome, by, on_behalf)
        return DecideReply(status=200, approval=voted)

    async def _run(self, run_id: str) -> RunRecord:
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is None:
            raise LookupError(f"run {run_id} has no record")
        return record


async def _nothing() -> None:
    """Restore nothing."""


def _step_terms(record: ApprovalRecord) -> StepTerms | None:
    if record.step_deciders is None:
        return StepTerms(need=record.step_need) if record.step_need > 1 else None
    return StepTerms(DecidersOf.model_validate(record.step_deciders), record.step_need)


def _not_pending(record: ApprovalRecord, *, request: DecideRequest) -> DecideReply:
    """Return 409 for a record that is not pending; 200 if the request repeats a vote that was not
    taken back."""
    key, who = request.idempotency_key, request.decider
    standing = [vote for vote in record.votes if vote.taken_back is None]
    recorded = [(vote.idempotency_key, vote.decider) for vote in standing]
    if record.decision is not None:
        recorded.append((record.decision.idempotency_key, record.decision.made_by))
    if key is not None and any(key == each and who.is_same(by) for each, by in recorded):
        if is_same_request(record, request):
            return DecideReply(status=200, approval=record)
        text = "this idempotency key came with another decision before"
        return DecideReply(status=409, detail=text, approval=record)
    return _refusal_of_ended(record)


def _refusal_of_ended(record: ApprovalRecord) -> DecideReply:
    return DecideReply(status=409, detail=_HOW_IT_ENDED[record.status](record), approval=record)


def _names(who: Deciders) -> str:
    return ", ".join([*(f"role {role}" for role in who.roles), *who.users]) or f"scope {who.scope}"


_HOW_IT_ENDED: Final[Mapping[str, Callable[[ApprovalRecord], str]]] = {
    "decided": lambda record: f"it was decided already, at {record.updated_at}",
    "withdrawn": lambda record: f"it was withdrawn: {record.reason}",
    "expired": lambda record: f"it has expired: {record.reason}",
}
