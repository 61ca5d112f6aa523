"""Has the objects that all command handlers use, and ends runs whose agent server is not called."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import orjson

from penstock.bus import Bus, Retry
from penstock.bus.records.runs import MAX_SHOWN_CHARACTERS, StartCommand
from penstock.bus.state.attempts import Attempts
from penstock.bus.streams import COMMANDS, raw_for
from penstock.bus.subjects import run_id_of
from penstock.settings import Config, ServerAgent
from penstock_connector.legs.opener import LegOpener
from penstock_connector.legs.orders import Order, Orders
from penstock_connector.legs.registry import LegRegistry
from penstock_connector.legs.runner import LegRunner
from penstock_connector.state.run_state import end_event
from penstock_connector.state.stores import Stores
from penstock_connector.succession.takeover import Takeover

log = logging.getLogger(__name__)

# The fields that both a start command and the run's record have.
_OF_RECORD: Final = {
    *("run_id", "agent", "session_id", "user_id", "tenant", "message"),
    *("parent_run_id", "step_id", "workflow_depth"),
}

HISTORY_LOST: Final = end_event(
    "lifecycle.failed",
    code="history_lost",
    error="NATS has lost data (a power cut, or an older store that was put back): whether the "
    "agent's server was called is not known, and it is not called again",
)


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The objects that all command handlers use."""

    bus: Bus
    config: Config
    stores: Stores
    orders: Orders
    registry: LegRegistry
    opener: LegOpener
    takeover: Takeover
    runner: LegRunner
    attempts: Attempts

    async def claim_as_cancelled(self, run_id: str) -> None:
        """Claim the start of a run that is ended, so that no start command begins it later. Raises
        Retry if a connector that is alive has claimed the start."""
        claims = self.stores.claims
        claim = await claims.claim(run_id, "cancelled")
        if claim is not None and claim.state != "cancelled":
            if not await claims.take_over(run_id, "cancelled"):
                raise Retry(0.5)
            log.info("run %s: ended before its start; its connector %s died", run_id, claim.pod)

    async def open_and_end(self, run_id: str, event: dict[str, Any]) -> None:
        """Write the only frames of a run whose agent server is never called: `open` and `event`.
        Raises FenceConflict if another connector has opened the run."""
        record = await self.stores.runs.record(run_id)
        if record is None:
            log.warning("run %s: it has no record, so it is not ended", run_id)
            return
        writer = self.stores.runs.writer(run_id)
        command = StartCommand.model_validate(
            record.model_dump(include=_OF_RECORD) | {"created_at": record.created_at}
        )
        facts = self.facts_of_open(command, self.config.server_agent(record.agent))
        await writer.write("open", orjson.dumps(facts), leg=1)
        await writer.write("event", orjson.dumps(event), leg=1)

    async def may_be_lost(
        self, order: Order, bucket: Literal["KV_claims", "KV_sent"], *, was_claimed: bool
    ) -> bool:
        """Return whether the command may have been carried out although RAW has no frames of the
        leg.

        This is so if the command was stored before RAW lost data, and an earlier connector may have
        claimed it: a claim was found, or the bucket of the claims has lost data, too. The connector
        must not call the agent server again then.
        """
        continuity, raw = self.bus.continuity, raw_for(order.run_id)
        if not continuity.of(raw):
            return False
        asked_at = await self._asked_at(order)
        if asked_at is None:
            return False
        since = datetime.fromisoformat(asked_at)

        def has_lost_data(stream: str) -> bool:
            losses = continuity.of(stream)
            return any(datetime.fromisoformat(loss.found_at) > since for loss in losses)

        return has_lost_data(raw) and (was_claimed or has_lost_data(bucket))

    async def _asked_at(self, order: Order) -> str | None:
        """Return when the command was stored, or when it was decided if COMMANDS has lost it."""
        stored = await self.bus.at(COMMANDS, order.record.sequence)
        if stored is not None and run_id_of(stored.subject) == order.run_id:
            return stored.stored_at
        if order.approval_id is None:
            return None
        return await self.orders.decisions.decided_at(order.approval_id)

    def facts_of_open(self, command: StartCommand, agent: ServerAgent | None) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "agent": command.agent,
            # Without an agent, no agent's frame follows the `open`. So nothing is decoded, and any
            # protocol can be named here.
            "protocol": agent.protocol if agent else "agno",
            "kind": agent.kind if agent else "agent",
            "session_id": command.session_id,
            "user_id": command.user_id,
            "message": command.message[:MAX_SHOWN_CHARACTERS],
        }
        if agent is not None:
            if agent.name:
                facts["agent_name"] = agent.name
            facts["hosts"] = agent.hosts
            if agent.drop:
                facts["drop"] = agent.drop
            facts |= self.runner.upstream(agent).facts_of_open(agent, command)
        if command.tenant:
            facts["tenant"] = command.tenant
        if command.idempotency_key:
            facts["idempotency_key"] = command.idempotency_key
        if command.traceparent:
            facts["traceparent"] = command.traceparent
        return facts | command.origin_facts()
