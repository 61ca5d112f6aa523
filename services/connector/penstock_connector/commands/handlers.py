"""Start, continue and cancel: the three commands, each safe to be delivered again.

An `open` is in RAW before the upstream is called. So a connector that finds a dead one's claim
knows: without an `open` nothing was sent, and it may take over; with one, nobody knows, and it says
so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import httpx
import orjson
from pydantic import ValidationError

from penstock.bus import (
    Bus,
    BusError,
    BusUnavailable,
    FenceConflict,
    ObjectGone,
    OutcomeUnknown,
    Peers,
    Retry,
    Stored,
)
from penstock.bus.records import (
    CancelCommand,
    Claim,
    ContinueCommand,
    Sent,
    StartCommand,
)
from penstock.bus.streams import COMMANDS, RAW
from penstock.bus.subjects import command as command_subject
from penstock.bus.subjects import control, run_id_of
from penstock.settings import AgentConfig, Config
from penstock_connector.commands.fair_turns import Turns
from penstock_connector.commands.session_order import Earlier, SessionOrder
from penstock_connector.legs.orders import Order, Orders
from penstock_connector.legs.registry import Legs
from penstock_connector.settings import ConnectorSettings
from penstock_connector.state.attempts import Attempts
from penstock_connector.state.claims import Claims
from penstock_connector.state.decided import NotDecided
from penstock_connector.state.run_state import CLOSED, Runs, ending, holder_of, kind_of, leg_of
from penstock_connector.succession.takeover import DIED, Succession
from penstock_connector.succession.watchdog import Stuck, Watchdog
from penstock_connector.upstreams.agui import client_tools

log = logging.getLogger(__name__)

MAX_SHOWN_CHARACTERS = 50_000  # of the message, in lifecycle.started: an `open` is one message
CONTROL_TIMEOUT_S = 2.0
AT_ONCE = 64  # starts whose legs are opened side by side
# An earlier start of the session that waits elsewhere for so long is begun here, where a leg is
# free, or in any case: the connector that was given it may hang.
TAKE_UP_S, TAKE_UP_ANYWAY_S = 2.0, 30.0
ENDING_S = 1.0  # how often it is looked whether a cancelled leg has ended


class Commands:
    """The handlers. What they open goes on in `legs`."""

    def __init__(
        self,
        bus: Bus,
        config: Config,
        settings: ConnectorSettings,
        client: httpx.AsyncClient,
        pod: str,
        sees_others: Callable[[], bool] = lambda: True,
        peers: Peers | None = None,
    ) -> None:
        self._bus = bus
        self._config = config
        self._pod = pod
        self._runs = Runs(bus, pod)
        self._claims = Claims(bus, pod, sees_others, peers)
        self._orders = Orders(bus, client)
        self._max_waiting = settings.max_waiting_starts
        self.legs = Legs(bus, settings, client, pod, self._runs, self._claims)
        self.turns = Turns(lambda: self.legs.room, lambda run_id: run_id in self.legs, AT_ONCE)
        self._reading = asyncio.Semaphore(AT_ONCE)
        self._order = SessionOrder(bus, self._runs, self._claims)
        self._attempts = Attempts(bus)
        self.succession = Succession(
            bus, config, settings, pod, self._runs, self._claims, self.legs, self._orders
        )

        self.watchdog = Watchdog(
            bus,
            pod,
            self._runs,
            self._claims,
            adopt=self.adopt_abandoned,
            send=self.send_abandoned,
            end=self.end_abandoned,
            ttl_s=settings.pod_ttl_s,
        )

    @property
    def room(self) -> int:
        """How many legs more this connector takes, and how many starts may wait for one here."""
        return max(self.legs.room, 0) + self._max_waiting

    @property
    def has_free_legs(self) -> bool:
        """Whether a start that waits elsewhere could begin here."""
        return self.legs.room > 0 and not len(self.turns)

    # start

    async def start(self, stored: Stored) -> None:
        """`command.connector.start.<run>`.

        Raises Retry while an earlier start of the session still waits, here or elsewhere.
        """
        if (earlier := await self._order.before(stored)) is not None:
            await self._let_begin(earlier, stored)
            raise Retry(0)
        try:
            await self._start(stored)
        finally:
            self._order.has_begun(stored)

    async def _let_begin(self, earlier: Earlier, stored: Stored) -> None:
        """Wait for an earlier start of the session; begin it here when nobody else does."""
        is_due = earlier.waited_s > (TAKE_UP_S if self.turns.is_free else TAKE_UP_ANYWAY_S)
        if not is_due:
            await self._order.wait(stored, earlier)
            return
        log.info("%s: begun here, as %s comes after it", earlier.stored.subject, stored.subject)
        try:
            await self.start(earlier.stored)
        except (BusError, Retry):
            await self._order.wait(stored, earlier)
        except Exception:  # its own delivery makes it a dead letter
            log.exception("%s: it comes again", earlier.stored.subject)
            await self._order.wait(stored, earlier)

    async def _start(self, stored: Stored) -> None:
        async with self._reading, self._attempts.at("read", stored):
            order: Order | None = await self._orders.start(stored)
        assert order is not None
        user_id, run_id = order.command.user_id, order.run_id
        if not self.turns.is_free:
            order = None  # a request may be large, and many may wait
        async with (
            self.turns.of(user_id, run_id, stored.sequence),
            self._attempts.at("begin", stored),
        ):
            await self._begin(order or await self._orders.start(stored))

    async def _begin(self, order: Order) -> None:
        run_id, command = order.run_id, order.command
        assert isinstance(command, StartCommand)
        with self.legs.alone_with(run_id):
            standing = await self._claims.claim(run_id)
            if standing is not None and not await self._still_to_start(order, standing):
                return
            noted = standing is not None
            may_be_lost = await self._may_be_lost(order, "KV_claims", noted=noted)
            if may_be_lost and await self._runs.tail(run_id) is None:
                await self._open_and_end(run_id, _LOST)
                await self._claims.end(run_id)
                return
            try:
                agent = self._config.agent(command.agent)
                writer, opened = self._runs.writer(run_id), _opened(command, agent)
                await self.legs.hold(order, agent, writer, opened, taken_over=noted)
            except BusError:
                raise
            except Exception:
                await self._claims.give_back(run_id)  # another connector may get the command now
                raise

    async def _still_to_start(self, order: Order, standing: Claim) -> bool:
        """Whether a run that was claimed before is still to be started, and by us."""
        run_id = order.run_id
        if standing.state == "cancelled" or run_id in self.legs:
            return False
        last = await self._runs.tail(run_id)
        if last is not None:
            if standing.pod == self._pod or not await self._claims.lives(standing.pod):
                await self.succession.adopt_unless_held(run_id, last)
            return False
        if standing.pod != self._pod and await self._claims.is_there(standing.pod):
            raise Retry(1)  # it may still die before it opens: keep the command until then
        if standing.pod != self._pod and not await self._claims.take_over(run_id):
            raise Retry(1)
        log.warning("run %s: claimed by %s and never opened; going on", run_id, standing.pod)
        return True

    async def _may_be_lost(self, order: Order, bucket: str, *, noted: bool) -> bool:
        """Whether the command may have been carried out, and RAW has lost that.

        It was stored before RAW lost something, and somebody has noted that he took it, or the
        notes have lost something, too. Then nobody knows, and it is not sent again.
        """
        continuity = self._bus.continuity
        if not continuity.of(RAW):
            return False
        asked_at = await self._asked_at(order)
        if asked_at is None:
            return False

        def lost_since(stream: str) -> bool:
            since = datetime.fromisoformat(asked_at)
            return any(
                datetime.fromisoformat(loss.found_at) > since for loss in continuity.of(stream)
            )

        return lost_since(RAW) and (noted or lost_since(bucket))

    async def _asked_at(self, order: Order) -> str | None:
        """When its command was stored; of one that was lost, when the decision was taken."""
        stored = await self._bus.at(COMMANDS, order.held.sequence)
        if stored is not None and run_id_of(stored.subject) == order.run_id:
            return stored.stored_at
        if order.approval_id is None:
            return None
        return await self._orders.decisions.decided_at(order.approval_id)

    # continue

    async def resume(self, stored: Stored) -> None:
        """`command.connector.continue.<run>`. Raises NotDecided: the run goes on waiting."""
        async with self._attempts.at("send", stored):
            await self._resume(stored)

    async def _resume(self, stored: Stored) -> None:
        order = await self._orders.resume(stored)
        run_id, command = order.run_id, order.command
        assert isinstance(command, ContinueCommand)
        with self.legs.alone_with(run_id):
            if await self._is_settled(command.approval_id):
                return
            # before the one sending is claimed: who has no decision must not use it up
            command = await self._orders.decisions.confirmed(command)
            standing = await self._claims.claim_sending(command.approval_id)
            if standing is not None and not await self._still_to_send(order, command, *standing):
                return
            try:
                await self._send(order, command, noted=standing is not None)
            except (BusError, Retry):
                raise
            except Exception:
                await self._claims.give_back_sending(command.approval_id)
                raise

    async def _send(self, order: Order, command: ContinueCommand, *, noted: bool) -> None:
        run_id = order.run_id
        last = await self._runs.tail(run_id)
        if last is not None and leg_of(last) >= command.leg:
            # one that only slept has sent it while we took the sending over; or what was noted of
            # the sending is lost, and the sending is not: look again
            raise Retry(0.1)
        if await self._may_be_lost(order, "KV_sent", noted=noted):
            await self._claims.record_sending(command.approval_id, "outcome_unknown")
            if last is None:
                await self._open_and_end(run_id, _LOST)
            else:
                await self._runs.end(run_id, last, "event", _LOST)
            return
        if (last is not None and kind_of(last) == "event") or await self._runs.has_ended(run_id):
            await self._refuse(command)
            return
        await self._orders.pause(command)  # without it the command is none
        opened = {
            "agent": command.agent,
            "approval_id": command.approval_id,
            "items": [item.model_dump() for item in command.items],
        }
        agent = self._config.agent(command.agent)
        writer = self._runs.writer(run_id, last)
        try:
            await self.legs.hold(order, agent, writer, opened, taken_over=noted)
        except FenceConflict:
            raise Retry(0.1) from None  # the run has moved on: look again what became of it

    async def _is_settled(self, approval_id: str) -> bool:
        sent = await self._claims.sending(approval_id)
        return sent is not None and sent.state != "claimed"

    async def _still_to_send(
        self, order: Order, command: ContinueCommand, sent: Sent, revision: int
    ) -> bool:
        """Whether a decision that was claimed before is still to be sent, and by us."""
        if sent.state != "claimed":
            return False
        last = await self._runs.tail(command.run_id)
        if last is not None and leg_of(last) >= command.leg:
            await self.succession.adopt_unless_held(command.run_id, last)
            await self.succession.record_sent(order.held, command.run_id)
            return False
        if sent.pod == self._pod:
            return True
        if await self._claims.is_there(sent.pod):
            raise Retry(1)
        if not await self._claims.take_over_sending(command.approval_id, revision):
            raise Retry(1)
        return True

    async def _refuse(self, command: ContinueCommand) -> None:
        log.info("run %s: it has ended, the decision is not sent", command.run_id)
        await self._claims.record_sending(command.approval_id, "refused")

    # cancel

    async def cancel(self, stored: Stored) -> None:
        """`command.connector.cancel.<run>`: any connector takes it and asks who holds the run.

        It is done once the leg has ended: who holds it may die of having said that it would.
        """
        async with self._attempts.at("cancel", stored):
            await self._cancel(stored)

    async def _cancel(self, stored: Stored) -> None:
        command = CancelCommand.model_validate_json(stored.payload)
        run_id = command.run_id
        try:
            await self._bus.request(control(run_id), command.dump(), CONTROL_TIMEOUT_S)
            raise Retry(ENDING_S)  # the holder ends it
        except OutcomeUnknown:
            # its holder may sleep for long, and another one has ended the leg meanwhile
            last = await self._runs.tail(run_id)
            if last is not None and kind_of(last) in CLOSED and await self._runs.has_ended(run_id):
                return
            raise Retry(0.5) from None
        except BusUnavailable:
            pass  # nobody holds a connection of the run
        told = {"by": command.by, "reason": command.reason}
        last = await self._runs.tail(run_id)
        if last is None:
            # it was never begun, or NATS has lost its frames and it was ended for that
            if not await self._runs.has_ended(run_id):
                await self._cancel_before_start(run_id, told)
        elif kind_of(last) in CLOSED:
            await self._runs.cancel_between_legs(run_id, told)
        elif await self._never_to_be_called(run_id):
            facts = {"outcome": "cancelled", "confirmed": True, **told}
            await self._runs.end(run_id, last, "end", facts)
        elif await self.legs.is_held(run_id, last):
            raise Retry(0.5)  # its holder is about to listen
        else:
            with self.legs.alone_with(run_id):
                await self.succession.adopt(run_id, last, DIED.format(holder_of(last)), command)
            raise Retry(0.1)  # it has ended, or somebody is about to end it

    async def _never_to_be_called(self, run_id: str) -> bool:
        claim = await self._claims.claimed(run_id)
        return claim is not None and claim.state == "cancelled"

    async def _cancel_before_start(self, run_id: str, told: dict[str, str]) -> None:
        standing = await self._claims.claim(run_id, "cancelled")
        if standing is not None and standing.state != "cancelled":
            if not await self._claims.take_over(run_id, "cancelled"):
                raise Retry(0.5)
            log.info("run %s: cancelled, its connector %s died", run_id, standing.pod)
        await self._open_and_end(run_id, ending("lifecycle.cancelled", **told, confirmed=True))

    # a command that nobody can carry out

    async def ends_its_run(self, stored: Stored) -> bool:
        """Whether its run has no other end: a continue without a decision changes nothing."""
        if ".continue." not in stored.subject:
            return ".start." in stored.subject
        try:
            order = await self._orders.resume(stored)
            assert isinstance(order.command, ContinueCommand)
            await self._orders.decisions.confirmed(order.command)
        except NotDecided:
            return False
        except (ValidationError, ObjectGone):
            return await self._orders.decisions.is_taken(run_id_of(stored.subject))
        return order.run_id == run_id_of(stored.subject)

    async def fail(self, run_id: str, error: Exception) -> None:
        """End the run that a dead letter leaves without an end; one that is held goes on."""
        last_word = ending(
            "lifecycle.failed", code="internal", error=f"the command cannot be carried out: {error}"
        )
        last = await self._runs.tail(run_id)
        if last is None:
            await self._open_and_end(run_id, last_word)
        elif not await self._runs.has_ended(run_id) and not await self.legs.is_held(run_id, last):
            await self._runs.end(run_id, last, "event", last_word)

    # a run that nobody would ever move (see `watch`)

    async def adopt_abandoned(self, run_id: str, last: Stored) -> None:
        """Go on with an open leg whose connector is dead, or say how it ended."""
        with self.legs.alone_with(run_id):
            await self.succession.adopt_unless_held(run_id, last)

    async def send_abandoned(self, run_id: str, approval_id: str) -> None:
        """Send a decision whose command was lost, as its record says; end the run if that fails.

        The one claim in KV `sent` guards it as it guards a command: should the command still come,
        or another connector do the same, the decision goes upstream once.
        """
        sent = await self._claims.sending(approval_id)
        command = await self._orders.decisions.command(approval_id)
        if command is not None and (sent is None or sent.state == "claimed"):
            # behind all that the session's queue has
            state = (await self._bus.api(f"STREAM.INFO.{COMMANDS}"))["state"]
            subject = command_subject("connector", "continue", run_id)
            try:
                await self._resume(Stored(subject, int(state["last_seq"]), {}, command.dump()))
                return
            except (BusError, Retry):
                raise
            except Exception:
                log.exception("run %s: its decision cannot be sent, the run ends", run_id)
        await self.end_abandoned(run_id, Stuck.NEVER_SENT, approval_id)

    async def end_abandoned(self, run_id: str, stuck: Stuck, approval_id: str | None) -> None:
        """End a run whose start, or whose decision, has been lost on its way.

        First what would begin it is claimed, so that a command that still comes does nothing.
        """
        with self.legs.alone_with(run_id):
            if stuck is Stuck.NEVER_STARTED:
                standing = await self._claims.claim(run_id, "cancelled")
                is_anothers = standing is not None and standing.state != "cancelled"
                if is_anothers and not await self._claims.take_over(run_id, "cancelled"):
                    raise Retry(0.5)
                await self._open_and_end(run_id, _NEVER_STARTED)
                return
            assert approval_id is not None
            noted = await self._claims.claim_sending(approval_id)
            if noted is not None and noted[0].state == "claimed":
                sent, revision = noted
                if await self._claims.lives(sent.pod):
                    raise Retry(0.5)
                if not await self._claims.take_over_sending(approval_id, revision):
                    raise Retry(0.5)
            await self._claims.record_sending(approval_id, "refused")
            last = await self._runs.tail(run_id)
            if last is not None and kind_of(last) in CLOSED:
                await self._runs.end(run_id, last, "event", _NEVER_SENT)

    async def _open_and_end(self, run_id: str, ending: dict[str, Any]) -> None:
        """The whole of a run whose upstream is never called."""
        record = await self._runs.record(run_id)
        if record is None:
            log.warning("run %s: nobody knows it", run_id)
            return
        writer = self._runs.writer(run_id)
        command = StartCommand.model_validate(
            record.model_dump(include={"run_id", "agent", "session_id", "user_id", "message"})
            | {"created_at": record.created_at}
        )
        opened = _opened(command, self._config.agent(record.agent))
        await writer.write("open", orjson.dumps(opened), leg=1)
        await writer.write("event", orjson.dumps(ending), leg=1)


_NEVER_STARTED = ending(
    "lifecycle.failed",
    code="internal",
    error="the command to start the run was lost before a connector had it; the agent's server "
    "was not called: start the run again",
    retryable=True,
)
_NEVER_SENT = ending(
    "lifecycle.failed",
    code="internal",
    error="the decision was taken, and was lost on its way to the agent's server; it was not "
    "sent: start the run again",
    retryable=True,
)
_LOST = ending(
    "lifecycle.failed",
    code="history_lost",
    error="NATS has lost data (a power cut, or an older store that was put back): whether the "
    "agent's server was called is not known, and it is not called again",
)


def _opened(command: StartCommand, agent: AgentConfig | None) -> dict[str, Any]:
    """The facts of the run, as `open` tells them to the normalizer."""
    facts: dict[str, Any] = {
        "agent": command.agent,
        # without an agent no frame will come, and any decoder will do
        "protocol": agent.protocol if agent else "agno",
        "kind": agent.kind if agent else "agent",
        "session_id": command.session_id,
        "user_id": command.user_id,
        "message": command.message[:MAX_SHOWN_CHARACTERS],
    }
    if agent is not None and agent.name:
        facts["agent_name"] = agent.name
    if agent is not None:
        facts["hosts"] = agent.hosts
    if agent is not None and agent.drop:
        facts["drop"] = agent.drop
    if command.body is not None and agent is not None and agent.protocol == "adk":
        # what the client asked for holds for the legs that follow, too
        facts["streaming"] = bool(orjson.loads(command.body).get("streaming", False))
    if agent is not None and agent.protocol == "agui":
        facts["client_tools"] = client_tools(agent, command)
    if command.idempotency_key:
        facts["idempotency_key"] = command.idempotency_key
    if command.traceparent:
        facts["traceparent"] = command.traceparent
    return facts


def patient(handle: Callable[[Stored], Awaitable[None]]) -> Callable[[Stored], Awaitable[None]]:
    """A bus that is away makes no message poisonous: it is delivered again."""

    async def handled(stored: Stored) -> None:
        try:
            await handle(stored)
        except BusError as error:
            log.warning("%s: not now: %s", stored.subject, error)
            raise Retry(1) from error

    return handled
