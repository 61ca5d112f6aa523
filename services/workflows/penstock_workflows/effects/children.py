"""Starts and cancels children, the runs that the steps of a workflow start.

Every call may be repeated.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any, Final

from penstock import start_fields
from penstock.bus import Bus, Message, Retry, subjects
from penstock.bus.records.runs import CancelCommand, ForkedFrom, RunRecord, TakenOver, Target
from penstock.runs.start import AncestorStopped, Origin, Start, Starter
from penstock.settings import AgentConfig, Config, WorkflowAgent
from penstock.web.auth.identity import RunUser
from penstock.web.problems import Problem
from penstock_workflows.effects.step_span import context_of
from penstock_workflows.engine.effects import CancelChild, StartChild
from penstock_workflows.engine.inputs import CancelInput, ChildInput, FailInput, Input
from penstock_workflows.engine.state import State

log = logging.getLogger(__name__)

_BUSY: Final = frozenset({429, 503})  # HTTP statuses after which a repeated start may succeed
BUSY_S: Final = 1.0
_CODES: Final = {404: "not_found", 422: "not_accepted"}


class Children:
    """Publishes the commands that start and cancel children. Each call may be repeated."""

    def __init__(self, bus: Bus, config: Config, starter: Starter) -> None:
        self._bus = bus
        self._config = config
        self._starter = starter

    async def start(self, state: State, child: StartChild) -> Input | None:
        """Start a child. Return None, or an input of its parent if the child cannot be started.

        The input is the failure of the child. If a workflow around the child stops, the input
        cancels the run; if the run's root has led to too many runs, it fails the run.

        The run's id is in the journal, so a repeated call starts no second run. Raises Retry if the
        run cannot be started now.
        """
        command = state.started.command
        try:
            agent = self._agent(child)
            await self._starter.start(
                Start(
                    agent,
                    child.message,
                    child.session_id,
                    RunUser(
                        str(command.get("user_id", "anonymous")),
                        command.get("roles") or (),
                        command.get("started_by") or (),
                        command.get("tenant") or "",
                    ),
                    input=child.input,
                    run_id=child.child,
                    shard=subjects.shard_of(child.child),
                    origin=Origin(
                        parent_run_id=state.run_id,
                        automations=tuple(command.get("automations") or ()),
                        depth=command.get("depth") or 0,
                        step_id=child.step_id,
                        workflow_depth=child.workflow_depth,
                        workflow_places=child.places,
                        root_run_id=command.get("root_run_id") or state.run_id,
                        # A stop of one of these keeps the child from beginning.
                        ancestors=()
                        if child.always
                        else (*command.get("ancestors", ()), state.run_id),
                    ),
                    tags=command.get("tags"),
                    **_forking(child),
                    traceparent=context_of(state, child.child),
                )
            )
        except start_fields.NotAccepted as error:
            return _failed(child, "not_accepted", f"the agent does not accept input: {error}")
        except AncestorStopped as error:
            return CancelInput(error.stopped.by, error.stopped.reason)
        except Problem as problem:
            if problem.status in _BUSY:
                log.info("run %s: %s waits: %s", state.run_id, child.step_id, problem.detail)
                raise Retry(BUSY_S) from problem
            if problem.status == HTTPStatus.LOOP_DETECTED:
                refused = {"code": "limit_exceeded", "message": problem.detail}
                return FailInput(refused, (child.child, "lifecycle.failed"))
            return _failed(child, _CODES.get(problem.status, "not_started"), problem.detail)
        return None

    async def cancel(self, child: CancelChild) -> ChildInput | None:
        """Publish the command to cancel a child. If the child was never started, publish nothing,
        and return the engine's input for its end.

        A child without a record was not started, and will not be started, because its step is over.
        If another process starts the child at this moment, that process cancels the child (see
        `Decisions`).
        """
        record = await self._bus.bucket("runs").load(child.child, RunRecord)
        if record is None:
            return ChildInput(child.child, "lifecycle.cancelled", {"reason": child.reason})
        target: Target = record.target or "connector"
        command = CancelCommand(run_id=child.child, by=child.by, reason=child.reason)
        await self._bus.publisher.publish(
            Message(
                subjects.command(target, "cancel", child.child),
                command.dump(),
                {"Nats-Msg-Id": f"{child.child}.cancel"},
            )
        )
        return None

    def _agent(self, child: StartChild) -> AgentConfig:
        """Return the agent of a step's run. Raises Problem 404, or NotAccepted for a wrong
        input."""
        if child.kind == "workflow":
            return WorkflowAgent(
                id=child.name, agent=child.name, protocol="workflow", version=child.version
            )
        agent = self._config.agent(child.name)
        if agent is None:
            raise Problem(404, self._config.no_agent(child.name))
        if not isinstance(agent, WorkflowAgent):
            start_fields.accepted_input(agent.protocol, agent.accepts, child.input)
        elif child.version is not None:
            return agent.model_copy(update={"version": child.version})
        return agent


def _forking(child: StartChild) -> dict[str, Any]:
    if child.fork is None:
        return {}
    return {
        "forked_from": ForkedFrom(run_id=child.fork["run_id"], sequence=child.fork["sequence"]),
        "taken_over": TakenOver(steps=child.fork["steps"]),
    }


def _failed(child: StartChild, code: str, text: str) -> ChildInput:
    data: dict[str, Any] = {"error": text, "code": code}
    return ChildInput(child.child, "lifecycle.failed", data)
