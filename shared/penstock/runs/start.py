"""Starts a run by writing the run's record and its command.

A repeated request gets the run of the first request.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson

from penstock import log_fields
from penstock.budgets.admission import Admission
from penstock.budgets.document import RunFacts
from penstock.bus import (
    RETRY_S,
    Bus,
    BusError,
    BusUnavailable,
    Message,
    OutcomeUnknown,
    StreamFull,
    subjects,
)
from penstock.bus.records.legs import MAX_SESSION_RUNS, SessionRecord
from penstock.bus.records.runs import ForkedFrom, RunRecord, StartCommand, TakenOver, WhenBusy
from penstock.bus.shards import new_run_id
from penstock.bus.state.run_trees import RunTrees, Stopped
from penstock.bus.subjects import session_key
from penstock.bus.write.objects import wrap
from penstock.off_loop import OFF_LOOP
from penstock.redactions.document import CurrentRedactions
from penstock.redactions.scanner import Parts, masked_by, redactor_of
from penstock.runs.open_runs import OpenRuns
from penstock.runs.session_shards import SessionShards
from penstock.runs.settings import StartSettings
from penstock.runs.workflows import check_start
from penstock.settings import AgentConfig, Config, WorkflowAgent
from penstock.tracing.requests import traceparent
from penstock.web.auth.identity import Identity, RunUser, check_run
from penstock.web.problems import Problem


async def list_run(bus: Bus, run_id: str, user_id: str, agent: str, session_id: str) -> None:
    """Add a run to the record that its session has for this agent; a repeat changes nothing."""

    def add(record: SessionRecord) -> None:
        if run_id not in record.runs:
            record.user_id = user_id
            record.runs = [*record.runs, run_id][-MAX_SESSION_RUNS:]

    # The thread id is the session's id at the agent server. A connector sets it when the connector
    # claims a run.
    new = SessionRecord(agent=agent, session_id=session_id)
    key = session_key(user_id, agent, session_id)
    await bus.bucket("sessions").change(key, SessionRecord, add, new)


BLOCKED = "blocked"  # the code of a start or run that a redaction has stopped
SHOWN_CHARACTERS = 200  # the run's record keeps this many characters of the message
TRIES = 3


@dataclass(frozen=True, slots=True)
class Origin:
    """Describes what led to a run that no person started.

    `parent_run_id` is the run whose event led to this run. `automations` has the ids of the rules
    that led to this run, beginning with the earliest rule. `depth` is the number of these rules.
    `depth` is greater than the length of `automations` if the ids of some rules are not known. The
    run of a workflow's step has a `step_id`. `workflow_depth` is the number of workflows around the
    run. `workflow_places` is the greatest number of runs that the run itself may have under way at
    once. `root_run_id` is the first of the runs that led to this run, and is set whenever
    `parent_run_id` is set. `ancestors` are the workflows' runs around the run of a step, beginning
    with the outermost one.
    """

    parent_run_id: str | None = None
    automations: tuple[str, ...] = ()
    depth: int = 0
    step_id: str | None = None
    workflow_depth: int | None = None
    workflow_places: int | None = None
    root_run_id: str | None = None
    ancestors: tuple[str, ...] = ()


class AncestorStopped(Exception):
    """A run was not started, because a workflow that it is inside of stops."""

    def __init__(self, stopped: Stopped) -> None:
        super().__init__(f"a workflow around the run was stopped by {stopped.by}")
        self.stopped = stopped


@dataclass(frozen=True, slots=True)
class Start:
    """A request for a run.

    `key` is the idempotency key. `request` has the bytes of the request. Each request with the same
    key must have the same bytes.

    Instead of a key, a caller can give `run_id`, which is an id from `Starter.new_run_id` that the
    caller has stored. Each request with this id gets the same run, as long as the run's record is
    kept. The bucket of idempotency keys is then not used.
    """

    agent: AgentConfig
    message: str
    session_id: str | None  # None for a new session
    user: RunUser
    input: dict[str, Any] | None = None
    body: str | None = None
    key: str | None = None
    request: bytes = b""
    # called with the run's id before the command is published
    prepare: Callable[[str], Awaitable[object]] | None = None
    when_busy: WhenBusy = "queue"
    # whether the caller may read what redactions only mask
    sees_pii: bool = False
    # whether the caller reads the agent server's own frames, which redactions do not reach
    reads_frames: bool = False
    # The shard of the session, from `Starter.shard_for`. If the shard is None, the starter looks up
    # the shard.
    shard: int | None = None
    run_id: str | None = None
    origin: Origin = Origin()
    forked_from: ForkedFrom | None = None  # see `check_fork`
    tags: Mapping[str, str] | None = None  # as `Tags` allows them
    taken_over: TakenOver | None = None  # for a fork, as in the command
    # The W3C trace context. None stands for the trace context of the request that is handled now.
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The record of a run; `new` is False if an earlier request with the same key created it, and
    was not refused."""

    record: RunRecord
    new: bool


class ForBusySession(Protocol):
    """Looks for open runs of a start's session."""

    async def __call__(
        self, command: StartCommand, when_busy: WhenBusy, agent: AgentConfig
    ) -> StartCommand:
        """Return the command to publish. The run's record exists already, so that of two starts at
        the same time, one sees the other. Raises Problem 409 if the start is refused."""


class Starter:
    """Writes the records and commands of new runs. `follow` must run meanwhile."""

    def __init__(
        self,
        bus: Bus,
        config: Config,
        settings: StartSettings,
        for_busy_session: ForBusySession | None = None,
    ) -> None:
        """`for_busy_session` is asked for starts that do not simply queue."""
        self._for_busy_session = for_busy_session
        self._bus = bus
        self.admission = Admission(bus)
        self.redactions = CurrentRedactions(bus)
        self.shards = SessionShards(bus, tuple(agent.id for agent in config.agents))
        self._trees = RunTrees(bus)
        self._max_runs_per_root = settings.max_runs_per_root
        self._callers_known = settings.auth.requires_credentials
        self._open_runs = OpenRuns(
            bus,
            settings.max_open_runs_per_user,
            settings.max_queued_runs_per_user,
            settings.max_paused_runs_per_user,
            tenant_limits=settings.auth.tenant_limits,
        )

    async def follow(self) -> None:
        """Keep what limits and changes starts up to date, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._open_runs.follow())
            group.create_task(self.admission.budgets.follow())
            group.create_task(self.redactions.follow())

    async def shard_for(self, user_id: str, session_id: str | None) -> int:
        if session_id is None:
            return self.shards.of_new_session()
        return await self.shards.of(user_id, session_id)

    async def new_run_id(self, user_id: str, session_id: str | None) -> str:
        """Return an id for a new run of this session. Store the id before you start the run."""
        # Lists sort runs by their ids, and an id contains the time. So the time comes from the
        # clock of the NATS server, which is the same for all processes.
        return new_run_id(await self.shard_for(user_id, session_id), self._bus.clock.time())

    async def start(self, start: Start) -> Started:
        """Start a new run, or return the run of an earlier request with the same key.

        Raises:
            Problem: 409 if the key was used with another request before, or source frames are read
                of a run with redactions; 422 if an id cannot be part of a path of the agent server,
                the input does not fit the workflow, or a redaction blocks it; 404 if there is no
                such workflow; 429 if the user has too many runs, or a budget has no
                room; 508 if the root of the run has led to too many runs.
            AncestorStopped: a workflow that the run is inside of stops.
            OutcomeUnknown: the run may have been started; after any other BusError it was not.
        """
        require_reachable(start.agent, start.user.user_id, start.session_id)
        if isinstance(start.agent, WorkflowAgent):
            try:
                start = await checked_workflow(self._bus, start)
            except Problem:
                # A repeated request must get the first run, even if the workflow has a new version
                # meanwhile which the input does not fit.
                if await self._earlier(start) is None:
                    raise
        if start.run_id is not None:
            run_id = start.run_id
        elif start.shard is not None:
            run_id = new_run_id(start.shard, self._bus.clock.time())
        else:
            run_id = await self.new_run_id(start.user.user_id, start.session_id)
        await self._add_to_tree(start.origin, run_id)
        # The runs of a workflow's steps are never refused, because the workflow's definition
        # already limits their number.
        user = start.user.tenant_user
        has_room = start.origin.step_id is not None or await self._open_runs.has_room(user)
        if not has_room and await self._earlier(start) is None:
            self._open_runs.refuse(user)
        # No `await` may come between the check and this line. Otherwise many concurrent starts
        # could all pass the check.
        self._open_runs.begin(user, run_id)
        try:
            started = await self._start(start, run_id)
        except BaseException:
            self._open_runs.forget(run_id)
            raise
        if started.record.run_id != run_id:
            self._open_runs.forget(run_id)  # the request was a repeat, and no new run was made
        return started

    async def _add_to_tree(self, origin: Origin, run_id: str) -> None:
        """Count the run below its root, unless the run may not begin."""
        if (stopped := await self._trees.stopped_among(origin.ancestors)) is not None:
            raise AncestorStopped(stopped)
        root, limit = origin.root_run_id, self._max_runs_per_root
        if root is not None and not await self._trees.add(root, run_id, limit):
            raise Problem(
                508,
                f"run {root} has led to {limit} runs (steps of workflows and runs that rules "
                "start), and may lead to no more: end the loop, start a new run for the rest, or "
                "ask the operator to raise PENSTOCK_MAX_RUNS_PER_ROOT",
                code="limit_exceeded",
            )

    async def _start(self, start: Start, run_id: str) -> Started:
        if start.key is not None and start.run_id is None:
            run_id = await self._first_of(start, run_id)
        command = _command(start, run_id, self._bus.clock.stamp()).model_copy(
            update={"callers_known": self._callers_known}
        )
        if start.session_id is None or start.origin.step_id is not None:
            # A step's run is in the shard of its parent run, so the step's own session must be in
            # this shard, too.
            await self.shards.record(command.user_id, command.session_id, subjects.shard_of(run_id))
        record, revision, redactions = await self._record(command, start)
        if record.redactions is not None:
            command = command.model_copy(update={"redactions": redactions})
        # An earlier attempt may have failed before it published the command. So a repeated request
        # publishes the command again. A second command for one run does no harm, because a run is
        # claimed only once.
        is_checked = command.workflow is None or command.version is not None
        if record.status == "queued" and is_checked:
            await self._command(start, command, revision)
        return Started(record, new=revision is not None)

    async def _command(self, start: Start, command: StartCommand, revision: int | None) -> None:
        """Prepare the run, and publish its command.

        `revision` is the record's revision if this request created the record, else None. If the
        command was certainly not published, a record that this request created is deleted.
        Otherwise lists would show a run that never begins. A record of an earlier request is not
        deleted, because the earlier request may have published the command.
        """
        try:
            if start.when_busy != "queue":
                assert self._for_busy_session is not None, "only the edge has such starts"
                command = await self._for_busy_session(command, start.when_busy, start.agent)
            if start.prepare is not None:
                await start.prepare(command.run_id)
            if command.workflow is not None:
                # For all other agents, the connector lists the run in its session.
                agent = self.shards.record_agent(command.agent)
                named = (command.user_id, agent, command.session_id)
                await list_run(self._bus, command.run_id, *named)
        except BaseException:
            await self._delete_record(command.run_id, revision)
            raise
        try:
            await self._publish(command)
        except (BusUnavailable, StreamFull):
            await self._delete_record(command.run_id, revision)
            raise

    async def _earlier(self, start: Start) -> RunRecord | None:
        """Return the record of the run if an earlier request has started it; else None."""
        run_id = start.run_id
        if run_id is None and start.key is not None:
            entry = await self._bus.bucket("idempotency").get(_key_of(start))
            run_id = orjson.loads(entry.value)["run_id"] if entry is not None else None
        return None if run_id is None else await self._bus.bucket("runs").load(run_id, RunRecord)

    async def _first_of(self, start: Start, run_id: str) -> str:
        """Return the id of the run of the key's first request, which is `run_id` if there was no
        request before. Raises Problem 409 if the key was used with another request before, 503 if
        the key has expired."""
        bucket = self._bus.bucket("idempotency")
        key = _key_of(start)
        digest = hashlib.sha256(start.request).hexdigest()
        value = orjson.dumps({"run_id": run_id, "sha256": digest})
        if await bucket.create(key, value) is not None:
            return run_id
        entry = await bucket.get(key)
        if entry is None:
            raise Problem(503, "the idempotency key has just expired; try again")
        first = orjson.loads(entry.value)
        if first["sha256"] != digest:
            raise Problem(409, "this idempotency key came with another request before")
        return str(first["run_id"])

    async def _record(
        self, command: StartCommand, start: Start
    ) -> tuple[RunRecord, int | None, dict[str, Any] | None]:
        """Create the run's record, unless there is one already. Return it with its revision, which
        is None if another request created it, and with the redactions that applied to the first
        request. Raises Problem 429 if a budget refuses the run, and as `_admitted`."""
        runs, origin = self._bus.bucket("runs"), start.origin
        facts = RunFacts(
            command.run_id,
            agent=command.agent,
            user=command.user_id,
            session_id=command.session_id,
            tenant=start.user.tenant,
            roles=start.user.roles,
            depth=origin.depth,
        )
        budgets = await self.admission.of(facts)
        redactions = (await self.redactions.in_force()).of(facts)
        may_be_repeat = start.key is not None or start.run_id is not None
        if (
            may_be_repeat
            and (budgets or redactions)
            and (known := await runs.load(command.run_id, RunRecord)) is not None
        ):
            return known, None, await self._first_redactions(known)
        message = shown_text(command)
        if redactions:
            # A long text is searched for seconds, in which others are served.
            search = _admitted(command, redactions, start)
            message = await OFF_LOOP.run_in_parts(command.tenant_user, search)
            if "check" in redactions:
                message = ""  # until the normalizer has had it checked
        if budgets:
            # A workflow that was admitted may run its steps, so their runs are never refused.
            await self.admission.enter(budgets, facts, always=origin.step_id is not None)
        record = RunRecord(
            run_id=command.run_id,
            agent=command.agent,
            session_id=command.session_id,
            user_id=command.user_id,
            tenant=command.tenant,
            roles=list(start.user.roles) or None,
            started_by=list(start.user.started_by) or None,
            target="workflows" if command.workflow is not None else None,
            message=message[:SHOWN_CHARACTERS],
            created_at=command.created_at,
            updated_at=command.created_at,
            parent_run_id=start.origin.parent_run_id,
            step_id=start.origin.step_id,
            workflow_depth=start.origin.workflow_depth,
            root_run_id=start.origin.root_run_id,
            automations=list(start.origin.automations) or None,
            depth=origin.depth or None,
            budgets=[budget.id for budget in budgets] or None,
            ancestors=list(origin.ancestors) or None,
            forked_from=start.forked_from,
            tags=dict(start.tags) if start.tags else None,
            redactions=redactions["version"] if redactions else None,
            masked=masked_by(redactions),
        )
        revision = await runs.create(command.run_id, record.dump())
        if revision is not None:
            return record, revision, redactions
        record = await runs.load(command.run_id, RunRecord) or record
        return record, None, await self._first_redactions(record)

    async def _first_redactions(self, record: RunRecord) -> dict[str, Any] | None:
        return await self.redactions_of(record) if record.status == "queued" else None

    async def redactions_of(self, record: RunRecord) -> dict[str, Any] | None:
        """Return the redactions of a run. Raises as `CurrentRedactions.at_start`."""
        if record.redactions is None:
            return None
        facts = RunFacts(
            record.run_id,
            agent=record.agent,
            user=record.user_id,
            session_id=record.session_id,
            tenant=record.tenant or "",
            roles=record.roles or (),
        )
        return await self.redactions.at_start(record.redactions, facts)

    async def _publish(self, command: StartCommand) -> None:
        name = f"{command.run_id}.start"
        payload = await wrap(self._bus, name, command.dump(), command.run_id)
        message = Message(
            subjects.command(
                "connector" if command.workflow is None else "workflows", "start", command.run_id
            ),
            payload,
            {"Nats-Msg-Id": command.run_id},
        )
        failure: BusError | None = None
        for _ in range(TRIES):
            try:
                await self._bus.publisher.publish(message)
                return
            except OutcomeUnknown as error:
                failure = error
            except (BusUnavailable, StreamFull) as error:
                # If the outcome of an earlier try is unknown, that try may have published the
                # command. So `failure` then stays `OutcomeUnknown`.
                if not isinstance(failure, OutcomeUnknown):
                    failure = error
            await asyncio.sleep(RETRY_S)
        assert failure is not None
        raise failure

    async def _delete_record(self, run_id: str, revision: int | None) -> None:
        """Delete the record of a run that has not begun, unless it has changed or KV does not
        answer."""
        if revision is None:
            return
        with suppress(BusError):
            await self._bus.bucket("runs").delete(run_id, revision)


async def check_fork(bus: Bus, who: Identity, fork: ForkedFrom | None) -> None:
    """Refuse a run that repeats a run which the caller may not see, with a Problem 404, and one
    that would take something over, with 422: only a fork does so."""
    if fork is None:
        return
    if fork.sequence:
        raise Problem(
            422,
            "forked_from.sequence: must be 0, because a start takes nothing over from the run; "
            "fork the run, to begin after one of its events",
        )
    unknown = Problem(404, f"there is no run {fork.run_id}")
    if not subjects.is_run_id(fork.run_id):
        raise unknown
    record = await bus.bucket("runs").load(fork.run_id, RunRecord)
    if record is None:
        raise unknown
    check_run(who, record.user_id, record.run_id, record.session_id)


def require_reachable(agent: AgentConfig, user_id: str, session_id: str | None) -> None:
    """Refuse ids with a slash for an ADK agent, with a Problem 422. An ADK server decodes `%2F`
    before it looks for the route. So it answers 404 to every request for an id with a slash."""
    if agent.protocol != "adk":
        return
    for name, id in (("session", session_id), ("user", user_id)):
        if id is not None and "/" in id:
            raise Problem(
                422,
                f"the {name} id {id[:128]!r} has a slash, which no path of an ADK server can have; "
                "use an id without one",
            )


def shown_text(command: StartCommand) -> str:
    """Return the text by which lists show and find the run: its message, or else what the input of
    a workflow says, as far as lists show it."""
    if command.message or command.workflow is None:
        return command.message
    texts: list[str] = []
    values: list[Any] = [command.input]
    while values and sum(map(len, texts)) < SHOWN_CHARACTERS:
        match values.pop():
            case dict() as fields:
                values += reversed(fields.values())
            case list() as items:
                values += reversed(items)
            case None | "":
                pass
            case value:
                texts.append(value if isinstance(value, str) else str(value))
    return " ".join(texts)


def _admitted(command: StartCommand, redactions: Mapping[str, Any], start: Start) -> Parts[str]:
    """Return the text as lists of runs may show it. Raises Problem."""
    if start.reads_frames and not (start.sees_pii and masked_by(redactions) == "all"):
        raise frames_refused(redactions["version"])
    redactor = redactor_of(command.run_id, redactions)
    message = yield from redactor.text_in_parts(shown_text(command))
    yield from redactor.value_in_parts([command.input, command.body])
    if redactor.blocked is not None:
        raise Problem(
            422,
            f"the input has a match of kind {redactor.blocked}, which the operator's redactions "
            "block; start the run without it",
            code=BLOCKED,
        )
    return message


def frames_refused(version: int) -> Problem:
    """Return the error for who wants to read what an agent server itself has sent."""
    return Problem(
        409,
        f"redactions apply here (version {version}), and what the agent server itself has sent "
        "has what they take out; use another dialect or path, or ask the operator",
        code="redacted",
    )


def _key_of(start: Start) -> str:
    return subjects.key_of(start.user.user_id, start.key)


def _command(start: Start, run_id: str, created_at: str) -> StartCommand:
    trace = start.traceparent or traceparent()
    log_fields.traced(run_id, trace)
    return StartCommand(
        run_id=run_id,
        agent=start.agent.id,
        # A new session's id is derived from the run's id, so that a repeated request gets the same
        # session.
        session_id=start.session_id or str(uuid.uuid5(uuid.UUID(run_id), "session")),
        user_id=start.user.user_id,
        tenant=start.user.tenant or None,
        message=start.message,
        input=start.input,
        body=start.body,
        idempotency_key=start.key,
        traceparent=trace,
        parent_run_id=start.origin.parent_run_id,
        step_id=start.origin.step_id,
        workflow_depth=start.origin.workflow_depth,
        root_run_id=start.origin.root_run_id,
        ancestors=list(start.origin.ancestors) or None,
        forked_from=start.forked_from,
        tags=dict(start.tags) if start.tags else None,
        taken_over=start.taken_over,
        created_at=created_at,
        **(_for_workflow(start.agent, start) if isinstance(start.agent, WorkflowAgent) else {}),
    )


def _for_workflow(agent: WorkflowAgent, start: Start) -> dict[str, Any]:
    return {
        "workflow": agent.agent,
        "version": agent.version,
        "workflow_places": start.origin.workflow_places,
        "roles": list(start.user.roles) or None,
        "started_by": list(start.user.started_by) or None,
        "automations": list(start.origin.automations) or None,
        "depth": start.origin.depth or None,
    }


async def checked_workflow(bus: Bus, start: Start) -> Start:
    """Return the start of a workflow's run, completed with the version and the whole input. Raises
    Problem 404 if there is no such workflow or version, 422 if the input does not fit."""
    agent = start.agent
    assert isinstance(agent, WorkflowAgent)
    record, whole_input = await check_start(
        bus,
        agent.agent,
        agent.version,
        sent=start.input,
        message=start.message,
        user=start.user.tenant_user,
    )
    return replace(
        start, agent=agent.model_copy(update={"version": record.version}), input=whole_input
    )
