"""Defines an order: a command to open a leg, with all data that the connector needs for the leg.

An order consists of a leg's record and the parsed command. A connector that takes a leg over reads
the same order from the record of the leg's earlier holder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from penstock import log_fields, start_fields
from penstock.bus import Bus, Stored
from penstock.bus.connection.retry import with_retries
from penstock.bus.records.approvals import ContinueCommand
from penstock.bus.records.legs import PauseRecord, QueuedLeg
from penstock.bus.records.runs import StartCommand
from penstock.bus.subjects import session_key
from penstock.bus.write import objects
from penstock.settings import ServerAgent
from penstock.tracing import spans
from penstock_connector.state.decided import Decisions
from penstock_connector.state.inputs import Inputs
from penstock_connector.state.leg_record import LegRecord
from penstock_connector.upstreams.base import BUDGET, Call, Upstream


@dataclass(frozen=True, slots=True)
class Order:
    """A leg to be opened; `thread_id` is the server's id of the session, empty if unknown."""

    record: LegRecord
    command: StartCommand | ContinueCommand
    thread_id: str = ""

    @property
    def run_id(self) -> str:
        return self.command.run_id

    @property
    def leg(self) -> int:
        return self.record.leg

    @property
    def approval_id(self) -> str | None:
        return self.record.approval_id

    @property
    def session(self) -> str:
        command = self.command
        return session_key(command.user_id, command.agent, command.session_id)

    def after(self, sequence: int) -> Order:
        return replace(self, record=replace(self.record, after=sequence))

    def with_thread_id(self, thread_id: str) -> Order:
        return replace(self, thread_id=thread_id)

    def queued_leg(self, pod: str) -> QueuedLeg:
        return QueuedLeg(run_id=self.run_id, leg=self.leg, pod=pod, sequence=self.record.sequence)


class Orders:
    """Reads orders, and makes the requests to agent servers for these orders."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.decisions = Decisions(bus)
        self._inputs = Inputs(bus)

    async def of_start(self, stored: Stored) -> Order:
        """Return the order of a start command.

        Raises:
            ValidationError: the command is malformed.
            ObjectGone: the command's content has expired in the object store.
        """
        return await self.of_record(LegRecord(1, stored.sequence, "start", stored.payload))

    async def of_continue(self, stored: Stored) -> Order:
        return await self.of_record(LegRecord(0, stored.sequence, "continue", stored.payload))

    async def of_record(self, record: LegRecord) -> Order:
        """Return the order in a leg's record. Raises the same exceptions as `of_start`."""
        payload = await objects.unwrap(self._bus, record.command)
        if record.kind == "start":
            start = StartCommand.model_validate_json(payload)
            log_fields.traced(start.run_id, start.traceparent)
            return Order(record, start)
        command = ContinueCommand.model_validate_json(payload)
        complete = replace(record, leg=command.leg, approval_id=command.approval_id)
        return Order(complete, command)

    async def pause(self, command: ContinueCommand) -> PauseRecord:
        """Return the pause that the command's decision is about. Raises LookupError if the pause's
        record is lost, or belongs to another approval."""
        pause = await self._bus.bucket("pauses").load(command.run_id, PauseRecord)
        if pause is not None and pause.approval_id == command.approval_id:
            return pause
        raise LookupError(f"the record of the pause for approval {command.approval_id} is lost")

    async def request(self, order: Order, upstream: Upstream[Any], agent: ServerAgent) -> Call:
        """Return the request that opens the leg; every connector makes the same request.

        Raises:
            NotAccepted: the start has an input that the agent's server must not get.
            NotDecided: there is no decision with the same content as the continue command.
            LookupError: the pause's record is lost.
            UpstreamRefused, httpx.HTTPError: an earlier request that the leg needs has failed.
        """
        command = order.command
        if isinstance(command, StartCommand):
            start = accepted(agent, command).model_copy(update={"session_id": order.thread_id})
            if not upstream.stores_requests:
                await self._inputs.store(start)
            call = await upstream.start(agent, start)
            return _traced(call, order, command.traceparent)
        decided = await with_retries(lambda: self.decisions.confirmed(command))
        pause = await with_retries(lambda: self.pause(decided))
        if pause.resume.get("kind") == BUDGET:
            pause.resume["input"] = await self._inputs.of_run(command.run_id)
        resume = decided.model_copy(update={"session_id": order.thread_id})
        call = await upstream.resume(agent, resume, pause)
        return _traced(call, order, pause.fold.get("facts", {}).get("traceparent"))


def _traced(call: Call, order: Order, traceparent: str | None) -> Call:
    log_fields.traced(order.run_id, traceparent)
    return replace(call, traceparent=spans.of_leg(traceparent, order.run_id, order.leg))


def accepted(agent: ServerAgent, command: StartCommand) -> StartCommand:
    """Return the start with only the input that the agent's server may get, or raise
    NotAccepted."""
    if command.body is not None:
        start_fields.check_body(agent.protocol, agent.accepts, command.body)
    fields = start_fields.accepted_input(agent.protocol, agent.accepts, command.input)
    return command.model_copy(update={"input": fields or None})
