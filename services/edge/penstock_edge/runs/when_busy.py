"""Decides what happens to a start while a run of its session is open (decision 0326).

A run is open until it has ended: while it is queued, running or paused. Of several starts at the
same time, the one whose record was created first counts as the earlier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from penstock.bus import Bus
from penstock.bus.read.direct import read
from penstock.bus.records.runs import ENDED, MAX_SHOWN_CHARACTERS, RunRecord, StartCommand, WhenBusy
from penstock.bus.streams import COMMANDS, events_for
from penstock.bus.subjects import command as command_subject
from penstock.bus.subjects import event
from penstock.bus.write.objects import unwrap
from penstock.events.catalogue import TERMINAL
from penstock.lookups import look_until
from penstock.redactions.patterns import MAX_MATCH_CHARACTERS
from penstock.settings import AgentConfig
from penstock.web.problems import Problem
from penstock_edge.sources.locate import lifecycle_of
from penstock_edge.sources.run_list import RunList
from penstock_edge.views.items import type_of

# Why a protocol's servers cannot take a message in the middle of a run. No server that Penstock
# knows can: in AG-UI as in the others, a request begins a run, and only its own answers go into it.
_NO_STEERING: Final[Mapping[str, str]] = {
    "agno": "Agno takes a message only with a new run",
    "adk": "ADK takes one message for each run at /run_sse",
    "agui": "AG-UI takes the whole conversation with the request that begins a run",
    "workflow": "a workflow's run takes its input only at its start",
}
# The message of a run from whose first event redactions took something out.
_CHANGED: Final = "\0"
_USE: Final = "use `queue`, `refuse` or `interrupt`"


class BusySessions:
    """Looks for open runs of a start's session, in one edge."""

    def __init__(self, bus: Bus, runs: RunList) -> None:
        self._bus = bus
        self._runs = runs

    async def __call__(
        self, command: StartCommand, when_busy: WhenBusy, agent: AgentConfig
    ) -> StartCommand:
        """Return the command to publish, with the runs that it interrupts and their messages.

        Raises:
            Problem: 409 if a run is open and the start is to be refused, or cannot be steered; 422
                if the agent's runs cannot be interrupted.
        """
        if when_busy == "interrupt" and agent.protocol == "workflow":
            raise Problem(
                422,
                "when_busy: the runs of a workflow do not wait for each other, so there is nothing "
                "to interrupt; cancel the open run, and start another",
            )
        runs = await self._open_runs(command)
        if not runs:
            return command
        names = ", ".join(run.run_id for run in runs[:3]) + (", …" if len(runs) > 3 else "")
        if when_busy == "refuse":
            raise Problem(
                409, f"the session has an open run ({names}); wait for its end, or cancel it"
            )
        if when_busy == "steer":
            why = _NO_STEERING[agent.protocol]
            raise Problem(409, f"the open run ({names}) cannot take a message: {why}; {_USE}")
        messages = [await self._message(run) for run in runs]
        message = "\n\n".join(filter(None, [*messages, command.message]))
        interrupts = [run.run_id for run in runs]
        return command.model_copy(update={"message": message, "interrupts": interrupts})

    async def _open_runs(self, command: StartCommand) -> Sequence[RunRecord]:
        """Return the session's open runs before this one, the oldest first."""
        await self._runs.index.caught_up()
        session = command.user_id, command.agent, command.session_id
        found = {each.run_id: each for each in self._runs.rows.open_of_session(*session)}
        mine = found.pop(command.run_id)
        # A record that was created later and has not begun is that of a later start.
        earlier = (
            run_id
            for run_id, other in found.items()
            if other.status != "queued" or other.revision < mine.revision
        )
        records = await asyncio.gather(*map(self._open_run, earlier))
        return [each for each in records if each is not None]

    async def _open_run(self, run_id: str) -> RunRecord | None:
        """Return the record of a run that has not ended. The event comes before the record, and a
        client that has seen the event may start the next run at once."""
        record = await self._bus.bucket("runs").load(run_id, RunRecord)
        if record is None or record.status in ENDED:
            return None
        last = await lifecycle_of(self._bus, run_id)
        return None if last is not None and type_of(last) in TERMINAL else record

    async def _message(self, run: RunRecord) -> str:
        """Return the whole message of a run: from its command, or once it has begun from its first
        event. Raises Problem 409 if none of them has it whole."""

        async def look() -> str | None:
            subject = command_subject(run.target or "connector", "start", run.run_id)
            stored = await self._bus.tail(COMMANDS, subject)
            if stored is not None:
                payload = await unwrap(self._bus, stored.payload)
                return StartCommand.model_validate_json(payload).message
            subject, first = event("lifecycle.started", run.run_id), run.first_event or 1
            found, _ = await read(self._bus, events_for(run.run_id), subject, first, 1)
            if not found:
                return None
            started = orjson.loads(await unwrap(self._bus, found[0].payload))
            return _CHANGED if "redactions" in started else started["data"].get("message") or ""

        # Redactions cut off less than this where the beginning of a match is cut.
        longest = MAX_SHOWN_CHARACTERS - (MAX_MATCH_CHARACTERS if run.redactions else 0)
        message = await look_until(run.user_id, look, lambda found: found is not None)
        if message is None or message == _CHANGED or len(message) >= longest:
            raise Problem(
                409,
                f"the message of the open run {run.run_id} is too long, has a match that was "
                "redacted, or is no longer kept, and cannot be sent again; wait for the run's end, "
                "or cancel it",
            )
        return message
