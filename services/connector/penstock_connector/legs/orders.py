"""Commands to open a leg, with all that it takes to carry them out, now or by a successor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import httpx

from penstock import starts
from penstock.bus import Bus, Stored
from penstock.bus.records import ContinueCommand, PauseRecord, StartCommand, Turn
from penstock.bus.subjects import session_key
from penstock.bus.write import objects
from penstock.settings import AgentConfig
from penstock_connector.state.claims import patiently
from penstock_connector.state.decided import Decisions
from penstock_connector.state.leg_note import Held
from penstock_connector.upstreams.base import Call, Upstream


@dataclass(frozen=True, slots=True)
class Order:
    """A leg to be opened. `prepare` makes its request, and again the same.

    It is given what the server calls the session, which is in `thread_id` once that is known.
    """

    held: Held
    command: StartCommand | ContinueCommand
    prepare: Callable[[Upstream, AgentConfig, str], Awaitable[Call]]
    thread_id: str = ""

    @property
    def run_id(self) -> str:
        """The run."""
        return self.command.run_id

    @property
    def leg(self) -> int:
        """Its number: 1 for a start."""
        return self.held.leg

    @property
    def approval_id(self) -> str | None:
        """The decision that it sends, if it does."""
        return self.held.approval_id

    @property
    def session(self) -> str:
        """The key of its session."""
        command = self.command
        return session_key(command.user_id, command.agent, command.session_id)

    def after(self, sequence: int) -> Order:
        """The same, to be opened after that sequence of RAW: what is noted says where to look."""
        return replace(self, held=replace(self.held, after=sequence))

    def named(self, thread_id: str) -> Order:
        """The same, in a session that the server calls so."""
        return replace(self, thread_id=thread_id)

    def turn(self, pod: str) -> Turn:
        """Its place in the session's queue, when that connector holds it."""
        return Turn(run_id=self.run_id, leg=self.leg, pod=pod, sequence=self.held.sequence)


class Orders:
    """Reads commands, and what was noted of them."""

    def __init__(self, bus: Bus, client: httpx.AsyncClient) -> None:
        self._bus = bus
        self._client = client
        self.decisions = Decisions(bus)

    async def start(self, stored: Stored) -> Order:
        """Of a start command as it stands in its stream. Raises ValidationError, BusError."""
        return await self.again(Held(1, stored.sequence, "start", stored.payload))

    async def resume(self, stored: Stored) -> Order:
        """Of a continue command. Raises as `start`."""
        return await self.again(Held(0, stored.sequence, "continue", stored.payload))

    async def again(self, held: Held) -> Order:
        """Of a leg that another connector has held. Raises as `start`."""
        payload = await objects.unwrap(self._bus, held.command)
        if held.kind == "start":
            return self._start(held, StartCommand.model_validate_json(payload))
        return self._resume(held, ContinueCommand.model_validate_json(payload))

    async def pause(self, command: ContinueCommand) -> PauseRecord:
        """What the command decides about. Raises LookupError when nothing is kept of it."""
        entry = await self._bus.bucket("pauses").get(command.run_id)
        if entry is not None and entry.value is not None:
            kept = await objects.unwrap(self._bus, entry.value)
            pause = PauseRecord.model_validate_json(kept)
            if pause.approval_id == command.approval_id:
                return pause
        raise LookupError(f"nothing is kept of the pause for approval {command.approval_id}")

    def _start(self, held: Held, command: StartCommand) -> Order:
        async def prepare(upstream: Upstream, agent: AgentConfig, thread_id: str) -> Call:
            start = accepted(agent, command).model_copy(update={"session_id": thread_id})
            return await upstream.start(self._client, agent, start)

        return Order(held, command, prepare)

    def _resume(self, held: Held, command: ContinueCommand) -> Order:
        async def prepare(upstream: Upstream, agent: AgentConfig, thread_id: str) -> Call:
            decided = await patiently(lambda: self.decisions.confirmed(command))
            pause = await patiently(lambda: self.pause(decided))
            going_on = decided.model_copy(update={"session_id": thread_id})
            return await upstream.resume(self._client, agent, going_on, pause)

        noted = replace(held, leg=command.leg, approval_id=command.approval_id)
        return Order(noted, command, prepare)


def accepted(agent: AgentConfig, command: StartCommand) -> StartCommand:
    """The start with nothing but what the agent's server may be passed. Raises NotAccepted."""
    if command.body is not None:
        starts.check_body(agent.protocol, agent.accepts, command.body)
    given = starts.accepted_input(agent.protocol, agent.accepts, command.input)
    return command.model_copy(update={"input": given or None})
