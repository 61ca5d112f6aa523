"""Makes the first input of a workflow's run from its start command."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from penstock.bus import Bus
from penstock.bus.records.runs import MAX_SHOWN_CHARACTERS, RunRecord, StartCommand
from penstock.dialects.workflow import PROTOCOL
from penstock.off_loop import OFF_LOOP
from penstock.redactions.scanner import hides_less
from penstock.runs.start import Starter
from penstock.runs.workflows import checked_input, find_workflow
from penstock.settings import Config, WorkflowAgent
from penstock.web.problems import Problem
from penstock_workflows.definition import InvalidDefinition
from penstock_workflows.engine import forking
from penstock_workflows.engine.inputs import CancelInput, StartInput
from penstock_workflows.engine.plan import plan_of_json
from penstock_workflows.engine.records import Record
from penstock_workflows.journal.journal import Journals

_CODES: Final = {404: "unknown_workflow", 422: "invalid_input"}


class Starts:
    """Finds the definition that a start command names."""

    def __init__(self, bus: Bus, config: Config, journals: Journals, starter: Starter) -> None:
        self._bus = bus
        self._config = config
        self._journals = journals
        self._starter = starter

    async def input_of(self, command: StartCommand) -> StartInput:
        """Return the input for a start command. If the start is not possible, `refused` has the
        reason."""
        agent = self._config.agent(command.agent)
        name, version = command.workflow or command.agent, command.version
        if isinstance(agent, WorkflowAgent):
            name, version = command.workflow or agent.agent, version or agent.version
        definition: dict[str, Any] | None = None
        given: dict[str, Any] = command.input or {}
        refused: dict[str, Any] | None = None
        first: dict[str, Any] | None = None
        try:
            found = await find_workflow(self._bus, name, version)
            # If the command has a version, the service that published the command has checked the
            # input.
            if command.version is None:
                given = await checked_input(
                    found, command.input, command.message, user=command.tenant_user
                )
            # The plan of a large definition takes a second to make. It is kept for the decisions.
            await OFF_LOOP.run(command.tenant_user, partial(plan_of_json, found.definition))
            definition = found.definition
            first = await self._first_of(command)
        except Problem as problem:
            code = _CODES.get(problem.status, "not_started")
            refused = {"code": code, "message": problem.detail}
        except (ValidationError, InvalidDefinition) as error:
            message = f"the definition of the workflow {name} cannot be compiled: {error}"
            refused = {"code": "invalid_definition", "message": message}
        return StartInput(
            run_id=command.run_id,
            command=command.model_dump(exclude_none=True),
            open=_open(command, agent, name),
            definition=definition,
            input=given,
            refused=refused,
            first=first,
        )

    async def _first_of(self, command: StartCommand) -> dict[str, Any] | None:
        """Return what a fork takes over from the journal of its first run, after a copy of the
        large outputs: the first journal is removed earlier than the fork's own."""
        if command.forked_from is None or command.taken_over is None:
            return None
        first_run = command.forked_from.run_id
        await self._require_as_hidden(command, first_run)
        journal, steps = await self._journal(first_run), frozenset(command.taken_over.steps)
        first = forking.ends_of(journal, steps, await self._asking(journal, steps))
        for digest in forking.references(first):
            value = await self._journals.value(first_run, digest)
            await self._journals.store_value(command.run_id, digest, value)
        return first

    async def _require_as_hidden(self, command: StartCommand, first_run: str) -> None:
        """Refuse a fork that shows more than its first run: the journal has values as they came,
        and the redactions of the fork's user may be others."""
        record = await self._bus.bucket("runs").load(first_run, RunRecord)
        first = await self._starter.redactions_of(record) if record is not None else None
        if hides_less(command.redactions, first):
            text = f"redactions hide something in the run {first_run}, and would not in its fork"
            raise Problem(409, f"{text}; start a run of the workflow instead")

    async def _asking(
        self, journal: Sequence[Record], steps: Collection[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Return the forks of the nested workflows in which people were asked, by their runs. In
        these, people must be asked again, also where a nested workflow is inside of another."""
        found: dict[str, dict[str, Any]] = {}
        for start in forking.completed_children(journal, steps):
            agent = self._config.agent(start.name)
            if start.kind == "run" and not isinstance(agent, WorkflowAgent):
                continue
            nested = await self._journal(start.child)
            if forking.asks(nested) or await self._asking(nested):
                record = await self._bus.bucket("runs").load(start.child, RunRecord)
                sequence = record.sequence if record is not None else 0
                found[start.child] = forking.fork_at_end(nested, sequence)
        return found

    async def _journal(self, run_id: str) -> list[Record]:
        journal, _ = await self._journals.read(run_id)
        if not journal:
            raise Problem(410, f"the journal of the run {run_id} is no longer kept")
        return journal


def unstarted_input_of(
    record: RunRecord,
    *,
    cancelled: CancelInput | None = None,
    refused: dict[str, Any] | None = None,
) -> StartInput:
    """Return the first input of a run that ends before its start command was handled.

    `cancelled` is a cancel that came before; `refused` (`code`, `message`) says why the start
    cannot be handled.
    """
    command = StartCommand(
        run_id=record.run_id,
        agent=record.agent,
        session_id=record.session_id,
        user_id=record.user_id,
        tenant=record.tenant,
        message=record.message,
        parent_run_id=record.parent_run_id,
        step_id=record.step_id,
        workflow_depth=record.workflow_depth,
        created_at=record.created_at,
    )
    return StartInput(
        run_id=command.run_id,
        command=command.model_dump(exclude_none=True),
        open=_open(command, None, command.agent),
        definition=None,
        input={},
        refused=refused,
        cancelled=cancelled,
    )


def _open(command: StartCommand, agent: object, workflow: str) -> dict[str, Any]:
    """Return the payload of the run's first source frame, with what the normalizer needs."""
    facts: dict[str, Any] = {
        "agent": command.agent,
        "protocol": PROTOCOL,
        "kind": "workflow",
        "workflow": workflow,
        "session_id": command.session_id,
        "user_id": command.user_id,
        "message": command.message[:MAX_SHOWN_CHARACTERS],
    }
    if isinstance(agent, WorkflowAgent) and agent.name:
        facts["agent_name"] = agent.name
    if command.tenant:
        facts["tenant"] = command.tenant
    if command.idempotency_key:
        facts["idempotency_key"] = command.idempotency_key
    if command.traceparent:
        facts["traceparent"] = command.traceparent
    return facts | command.origin_facts()
