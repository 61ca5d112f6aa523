"""Orders: an order is a command to open a leg, with all that is needed to carry it out.

An order consists of a leg's record and the parsed command. The connector that takes a leg over
reads the same order from the record of the leg's earlier holder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import httpx

from penstock import starts
from penstock.bus import Bus, Stored
from penstock.bus.records import ContinueCommand, PauseRecord, StartCommand, Turn
from penstock.bus.subjects import session_key
from penstock.bus.write import objects
from penstock.settings import ServerAgent
from penstock_connector.state.decided import Decisions
from penstock_connector.state.leg_record import LegRecord
from penstock_connector.state.retries import with_retries
from penstock_connector.upstreams.base import Call, Upstream


@dataclass(frozen=True, slots=True)
class Order:
    """A leg to be opened. `thread_id` is what the server calls the session, once it is known."""

    record: LegRecord
    command: StartCommand | ContinueCommand
    thread_id: str = ""

    @property
    def run_id(self) -> str:
        """The run."""
        return self.command.run_id

    @property
    def leg(self) -> int:
        """The number of the leg: 1 for a start."""
        return self.record.leg

    @property
    def approval_id(self) -> str | None:
        """The id of the approval whose decision the leg sends; None for a start."""
        return self.record.approval_id

    @property
    def session(self) -> str:
        """The key of the leg's session in KV `sessions`."""
        command = self.command
        return session_key(command.user_id, command.agent, command.session_id)

    def after(self, sequence: int) -> Order:
        """The same order, whose `open` follows that sequence of RAW."""
        return replace(self, record=replace(self.record, after=sequence))

    def named(self, thread_id: str) -> Order:
        """The same order, in a session that the server calls `thread_id`."""
        return replace(self, thread_id=thread_id)

    def turn(self, pod: str) -> Turn:
        """The leg's place in the session's queue, with that connector as the holder."""
        return Turn(run_id=self.run_id, leg=self.leg, pod=pod, sequence=self.record.sequence)


class Orders:
    """Reads orders, and makes their requests."""

    def __init__(self, bus: Bus, client: httpx.AsyncClient) -> None:
        self._bus = bus
        self._client = client
        self.decisions = Decisions(bus)

    async def of_start(self, stored: Stored) -> Order:
        """The order of a start command.

        Raises:
            ValidationError: the command is malformed.
            BusError: the bus is away.
            ObjectGone: the command's content has aged out of the object store.
        """
        return await self.of_record(LegRecord(1, stored.sequence, "start", stored.payload))

    async def of_continue(self, stored: Stored) -> Order:
        """The order of a continue command. Raises as `of_start` does."""
        return await self.of_record(LegRecord(0, stored.sequence, "continue", stored.payload))

    async def of_record(self, record: LegRecord) -> Order:
        """The order of a leg that another connector has held. Raises as `of_start` does."""
        payload = await objects.unwrap(self._bus, record.command)
        if record.kind == "start":
            return Order(record, StartCommand.model_validate_json(payload))
        command = ContinueCommand.model_validate_json(payload)
        complete = replace(record, leg=command.leg, approval_id=command.approval_id)
        return Order(complete, command)

    async def pause(self, command: ContinueCommand) -> PauseRecord:
        """The pause that the command's decision is about.

        Raises:
            LookupError: the pause's record is lost, or belongs to another approval.
            BusError: the bus is away.
        """
        entry = await self._bus.bucket("pauses").get(command.run_id)
        if entry is not None and entry.value is not None:
            value = await objects.unwrap(self._bus, entry.value)
            pause = PauseRecord.model_validate_json(value)
            if pause.approval_id == command.approval_id:
                return pause
        raise LookupError(f"the record of the pause for approval {command.approval_id} is lost")

    async def request(self, order: Order, upstream: Upstream[Any], agent: ServerAgent) -> Call:
        """Make the request that opens the leg; it is the same for each connector that makes it.

        Raises:
            NotAccepted: the start passes something that the agent's server may not be passed.
            NotDecided: the continue has no decision that says the same.
            LookupError: the pause's record is lost.
            UpstreamRefused, httpx.HTTPError: the server refused a request that had to come before.
        """
        command = order.command
        if isinstance(command, StartCommand):
            start = accepted(agent, command).model_copy(update={"session_id": order.thread_id})
            return await upstream.start(self._client, agent, start)
        decided = await with_retries(lambda: self.decisions.confirmed(command))
        pause = await with_retries(lambda: self.pause(decided))
        resume = decided.model_copy(update={"session_id": order.thread_id})
        return await upstream.resume(self._client, agent, resume, pause)


def accepted(agent: ServerAgent, command: StartCommand) -> StartCommand:
    """Return the start with only the input that may be passed to the agent's server.

    Raises:
        NotAccepted: the start passes something else.
    """
    if command.body is not None:
        starts.check_body(agent.protocol, agent.accepts, command.body)
    given = starts.accepted_input(agent.protocol, agent.accepts, command.input)
    return command.model_copy(update={"input": given or None})
