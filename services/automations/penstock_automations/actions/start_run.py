"""Carries out the action `run`: starts one run of the rule's owner for each delivery.

Before the start, a plan with the run's id, session and message is stored. Every later attempt of
the delivery uses this plan, also after a kill or a replay. So the attempt starts the same run with
the same message, and never a second run. A plan is kept as long as the delivery's record (30 days).
An idempotency key would be kept for 24 hours only.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any, Final

import orjson
from pydantic import ValidationError

from penstock import start_fields
from penstock.bus import Bus, StreamFull
from penstock.bus.records.base import Record
from penstock.bus.records.runs import RunRecord
from penstock.expressions import ExpressionError
from penstock.runs.depth import MAX_DEPTH
from penstock.runs.start import Origin, Start, Starter, require_reachable
from penstock.settings import AgentConfig, Config, WorkflowAgent
from penstock.web.auth.identity import RunUser
from penstock.web.problems import Problem
from penstock_automations.actions.executor import (
    ActionExecutor,
    Attempted,
    Codes,
    Occurrence,
    Verdict,
    refused,
    unfilled,
)
from penstock_automations.jobs.job import Job
from penstock_automations.rules.actions import filled, filled_json
from penstock_automations.rules.check import missing_right
from penstock_automations.rules.records import CompiledRule, event_of
from penstock_automations.rules.scheduled import workflow_of

MAX_SESSION_CHARACTERS: Final = 512
_CODES: Final[Codes] = {
    403: ("final", "not_allowed"),
    404: ("final", "unknown_agent"),
    422: ("final", "not_accepted"),
    429: ("failed", "too_many_runs"),
    503: ("failed", "unavailable"),
    508: ("final", "depth"),
}


class Plan(Record):
    """KV `deliveries`, key `run.<delivery>`: the run that a delivery starts."""

    run_id: str
    agent: str
    session_id: str | None = None
    message: str
    input: dict[str, Any] | None = None
    automations: list[str]
    depth: int
    started_by: list[str] | None = None
    root_run_id: str | None = None
    tags: dict[str, str] | None = None


class StartRunExecutor(ActionExecutor):
    """Starts runs."""

    def __init__(self, bus: Bus, config: Config, starter: Starter) -> None:
        self._bus = bus
        self._config = config
        self._starter = starter
        self._plans = bus.bucket("deliveries")

    async def attempt(
        self,
        rule: CompiledRule,
        job: Job,
        occurrence: Occurrence,
        started_run_id: str | None,
    ) -> Attempted:
        if started_run_id is not None:
            # This is a replay of a delivery that has started its run. The plan is not read, because
            # it may have expired.
            text = f"run {started_run_id} was started before"
            at = self._bus.clock.stamp()
            return Attempted(Verdict("delivered", text=text), at, 0.0, run_id=started_run_id)

        async def started() -> Plan:
            plan = await self._plan(rule, job, occurrence)
            owner = rule.record.owner
            user = RunUser(owner.user_id, owner.roles, plan.started_by or (), owner.tenant)
            await self._start(job, plan, user, traceparent=occurrence.traceparent)
            return plan

        return await self._attempted(started())

    async def complete_unrecorded_attempt(self, job: Job) -> Attempted | None:
        """Complete the start if the run has a record. Otherwise no run was started."""
        plan = await self._plans.load(f"run.{job.key}", Plan)
        if plan is None:
            return None
        record = await self._bus.bucket("runs").load(plan.run_id, RunRecord)
        if record is None:
            return None

        async def started() -> Plan:
            if record.status == "queued":
                # The killed process may have ended before it published the command.
                user = RunUser(
                    record.user_id, record.roles or (), plan.started_by or (), record.tenant or ""
                )
                await self._start(job, plan, user, traceparent=None)
            return plan

        return await self._attempted(started())

    async def _attempted(self, started: Awaitable[Plan]) -> Attempted:
        begun, at = time.monotonic(), self._bus.clock.stamp()
        run_id: str | None = None
        try:
            plan = await started
            run_id = plan.run_id
            verdict = Verdict("delivered", text=f"started run {run_id} of agent {plan.agent}")
        except ExpressionError as error:
            verdict = unfilled(error)
        except start_fields.NotAccepted as error:
            verdict = Verdict("final", "not_accepted", f"the agent does not accept input: {error}")
        except Problem as problem:
            verdict = refused(problem, _CODES)
        except StreamFull as error:
            verdict = Verdict("failed", "queue_full", f"the queue of starts is full: {error}")
        return Attempted(verdict, at, time.monotonic() - begun, run_id=run_id)

    async def _plan(self, rule: CompiledRule, job: Job, occurrence: Occurrence) -> Plan:
        """Return the plan of the delivery; the first call makes and stores the plan. Raises
        Problem, NotAccepted or ExpressionError if the rule cannot start a run for the event."""
        key = f"run.{job.key}"
        plan = await self._plans.load(key, Plan)
        if plan is None:
            made = await self._made(rule, job, occurrence)
            if await self._plans.create(key, made.dump()) is not None:
                return made
            plan = await self._plans.load(key, Plan)  # another process has stored the plan first
        if plan is None:
            raise Problem(503, "the plan of the run has just expired")
        return plan

    async def _made(self, rule: CompiledRule, job: Job, occurrence: Occurrence) -> Plan:
        record = rule.record
        action = record.rule.action.run
        assert action is not None, "the delivery chooses the executor by the kind of action"
        if (reason := missing_right(record.rule.action, record.owner)) is not None:
            raise Problem(403, reason)
        if job.depth + 1 > MAX_DEPTH:
            raise Problem(508, f"{job.depth} rules led to this event, so it triggers nothing")
        agent = self._agent(rule.id, action.agent)
        event = event_of(orjson.loads(occurrence.payload))
        session_id = None
        if action.session_id is not None:
            session_id = filled(action.session_id, event)
            if not 0 < len(session_id) <= MAX_SESSION_CHARACTERS:
                raise Problem(422, f"a session id has 1 to {MAX_SESSION_CHARACTERS} characters")
        filled_fields, message = action.input, ""
        if workflow_of(rule.id) is None:
            filled_fields = filled_json(action.input, {"event": event})
            message = filled(action.message, event)
        start_fields.accepted_input(agent.protocol, agent.accepts, filled_fields)
        require_reachable(agent, record.owner.user_id, session_id)
        parent = await self._parent(job)
        return Plan(
            run_id=await self._starter.new_run_id(record.owner.user_id, session_id),
            agent=agent.id,
            session_id=session_id,
            message=message,
            input=filled_fields,
            automations=[*(parent.automations or () if parent else ()), rule.id],
            depth=job.depth + 1,
            # Whoever made the event happen may have chosen what the run does.
            started_by=_requesters(parent, record.owner.user_id)
            if parent
            else list(rule.started_by),
            root_run_id=parent.root_run_id or parent.run_id if parent else job.run_id,
            tags=action.tags,
        )

    def _agent(self, rule_id: str, agent_id: str) -> AgentConfig:
        """Return the agent of a rule, or the workflow whose schedule it is. Raises Problem 404."""
        if (name := workflow_of(rule_id)) is not None:
            return WorkflowAgent(id=name, agent=name, protocol="workflow")
        agent = self._config.agent(agent_id)
        if agent is None:
            raise Problem(404, self._config.no_agent(agent_id))
        return agent

    async def _parent(self, job: Job) -> RunRecord | None:
        if job.run_id is None:
            return None
        try:
            return await self._bus.bucket("runs").load(job.run_id, RunRecord)
        except ValidationError:
            return None

    async def _start(
        self,
        job: Job,
        plan: Plan,
        user: RunUser,
        *,
        traceparent: str | None,
    ) -> None:
        agent = self._agent(job.rule, plan.agent)
        await self._starter.start(
            Start(
                agent,
                plan.message,
                plan.session_id,
                user,
                input=plan.input,
                key=job.delivery_id,
                run_id=plan.run_id,
                origin=Origin(
                    job.run_id,
                    tuple(plan.automations),
                    plan.depth,
                    root_run_id=plan.root_run_id or job.run_id,
                ),
                tags=plan.tags,
                traceparent=traceparent,
            )
        )


def _requesters(parent: RunRecord, owner: str) -> list[str]:
    """Return the requesters of the run whose event led here, without the rule's owner."""
    names = dict.fromkeys([parent.user_id, *(parent.started_by or ())])
    return [name for name in names if name != owner]
