"""Stand-ins for the connector, the normalizer and the approvals service on the bus.

They replace only these services: everything goes through a real nats-server and `penstock.bus`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import uuid_utils
from nats.aio.msg import Msg

from penstock.bus import Bus, Message, RawWriter, messages, streams, subjects
from penstock.bus.records.approvals import ApprovalRecord, DecideReply, DecideRequest
from penstock.bus.records.erasures import HoldChange
from penstock.bus.records.legs import QueuedLeg, SessionRecord
from penstock.bus.records.runs import RunRecord, StartCommand
from penstock.bus.write.objects import unwrap, wrap
from support.drive.waiting import eventually
from support.recorded.canonical import Recorded, type_of


class PretendRun:
    """One run. It publishes canonical events in order, and writes the upstream's frames."""

    def __init__(self, bus: Bus, run_id: str = "", session_id: str = "s1") -> None:
        self.bus = bus
        self.session_id = session_id
        self.run_id = run_id or str(uuid_utils.uuid7())
        self.sequence = 0
        self.leg_number = 1  # the leg of the published events
        self.envelope: dict[str, Any] = {}  # further fields of the published events
        self.headers: dict[str, str] = {}  # further headers of the published events
        self.first = 0
        self.places: list[int] = []  # stream sequences of the published events
        self._raw: RawWriter | None = None

    async def record(self, **fields: Any) -> RunRecord:
        """Write the run's record into KV `runs`, as the edge does at a start."""
        now = messages.now()
        record = RunRecord(
            **{
                "run_id": self.run_id,
                "agent": "assistant",
                "session_id": self.session_id,
                "user_id": "anonymous",
                "created_at": now,
                "updated_at": now,
                **fields,
            }
        )
        await self.bus.bucket("runs").put(self.run_id, record.dump())
        return record

    async def say(self, type: str, **data: Any) -> int:
        """Publish a canonical event; return its stream sequence."""
        self.sequence += 1
        category, _, action = type.partition(".")
        event = {
            "run_id": self.run_id,
            "timestamp": messages.now(),
            "sequence": self.sequence,
            "source": None
            if category == "lifecycle"
            else {
                "agent_id": "assistant",
                "agent_type": "agent",
                "agent_name": "Assistant",
                "team_name": None,
            },
            "event": {"category": category, "action": action},
            "data": data,
            "session_id": self.session_id,
            "leg": self.leg_number,
            **self.envelope,
        }
        headers = {messages.SEQUENCE: str(self.sequence), **self.headers}
        if self.first:
            headers[messages.FIRST] = str(self.first)
        payload = await wrap(
            self.bus, f"{self.run_id}.{self.sequence}", orjson.dumps(event), self.run_id
        )
        place = await self.bus.publisher.publish(
            Message(subjects.event_input(type, self.run_id), payload, headers)
        )
        self.first = self.first or place
        self.places.append(place)
        return place

    async def join(self, *, waits: bool = False, **fields: Any) -> None:
        """Write KV `sessions`, as the connector does when it takes a leg.

        With `waits`, the leg is in the session's queue; otherwise it has left the queue. `fields`:
        fields of the run's record.
        """
        record = await self.record(**fields)
        bucket = self.bus.bucket("sessions")
        key = subjects.session_key(record.user_id, record.agent, record.session_id)
        entry = await bucket.get(key)
        session = (
            SessionRecord.model_validate_json(entry.value)
            if entry
            else SessionRecord(agent=record.agent, session_id=record.session_id)
        )
        session.user_id = record.user_id
        if self.run_id not in session.runs:
            session.runs.append(self.run_id)
        session.queue = [turn for turn in session.queue if turn.run_id != self.run_id]
        if waits:
            session.queue.append(QueuedLeg(run_id=self.run_id, leg=1, pod="pretended"))
        await bucket.put(key, session.dump())

    async def started(self) -> None:
        """Publish the first event."""
        await self.say("lifecycle.started", agent="assistant", user_id="anonymous")

    async def text(self, *pieces: str) -> None:
        """Publish one `llm.stream` for each piece."""
        for piece in pieces:
            await self.say("llm.stream", content=piece, message_id="m1")

    async def completed(self, summary: str = "done") -> None:
        """Publish `lifecycle.completed`."""
        await self.say("lifecycle.completed", summary=summary, content=summary)

    async def raw(self, kind: str, payload: bytes | dict[str, Any] = b"", leg: int = 1) -> int:
        """Write a source frame as the connector does."""
        if self._raw is None:
            self._raw = await RawWriter.resume(self.bus, self.run_id, "upstream", "c1")
        body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        return await self._raw.write(kind, body, leg=leg)

    async def leg(self, *bodies: bytes, leg: int = 1) -> None:
        """Write a whole leg that ends without an error."""
        await self.raw("open", {}, leg=leg)
        for body in bodies:
            await self.raw("bytes", body, leg=leg)
        await self.raw("end", {"outcome": "eof"}, leg=leg)


async def play(run: PretendRun, recording: Recorded, session_id: str) -> None:
    """Publish the events of a recording as those of this run, in a session."""
    async for _ in playing(run, recording, session_id):
        pass


async def playing(run: PretendRun, recording: Recorded, session_id: str) -> AsyncIterator[int]:
    """Publish the events of a recording as those of this run, and yield the number of each."""
    run.session_id = session_id
    await run.join(agent="assistant", session_id=session_id)
    for number, event in enumerate(recording.events, 1):
        run.leg_number = event["leg"]
        named = ("source", "subrun", "step_id", "attempt")
        run.envelope = {name: event[name] for name in named if name in event}
        await run.say(type_of(event), **event["data"])
        yield number


async def command_of(
    bus: Bus, run_id: str, kind: str = "start", *, target: str = "connector"
) -> dict[str, Any]:
    """Return the command that was published for the run."""
    stored = await eventually(
        lambda: bus.tail(streams.COMMANDS, subjects.command(target, kind, run_id)),
        what=f"a {kind} command",
    )
    command: dict[str, Any] = orjson.loads(await unwrap(bus, stored.payload))
    return command


class PretendConnector:
    """A connector that takes every start command and lets `script` play the run."""

    def __init__(self, bus: Bus, script: Callable[[PretendRun, StartCommand], Any]) -> None:
        self._bus = bus
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Subscribe to the commands; a core subscription also receives messages for a stream."""
        await self._bus.subscribe(subjects.command("connector", "start", "*"), self._on_start)

    async def stop(self) -> None:
        """Wait for the ends of the runs that are under way."""
        await asyncio.gather(*self._tasks)

    async def _on_start(self, msg: Msg) -> None:
        command = StartCommand.model_validate_json(await unwrap(self._bus, msg.data))
        task = asyncio.create_task(self._script(PretendRun(self._bus, command.run_id), command))
        self._tasks.add(task)


class PretendApprovals:
    """The answers to `decide.`: the first decision wins, and every later one is refused. Each
    `hold.` is answered."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.decisions: list[DecideRequest] = []
        self.decided: list[str] = []  # the ids of the approvals
        self.holds: list[HoldChange] = []
        self.on_decision: Callable[[DecideRequest], Any] | None = None

    async def start(self) -> None:
        """Subscribe to decisions."""
        await self._bus.subscribe(subjects.decide("*"), self._on_decide)
        await self._bus.subscribe(subjects.hold("*"), self._on_hold)

    async def request(
        self,
        run_id: str,
        agent: str,
        session_id: str,
        items: dict[str, str],
        **fields: dict[str, Any],
    ) -> str:
        """Record the approval of a pause; return its id.

        `items` maps item ids to kinds. `fields` maps item ids to further fields of the items.
        """
        approval_id = str(uuid_utils.uuid7())
        now = messages.now()
        record = ApprovalRecord(
            approval_id=approval_id,
            run_id=run_id,
            agent=agent,
            session_id=session_id,
            user_id="u1",
            leg=1,
            digest="d",
            items=[
                {"item_id": id, "kind": kind, **fields.get(id, {})} for id, kind in items.items()
            ],
            requested_at=now,
            updated_at=now,
        )
        await self._bus.bucket("approvals").put(approval_id, record.dump())
        for id in items:
            alias = {"approval_id": approval_id, "run_id": run_id, "leg": 1, "item_id": id}
            key = subjects.key_of("approval", agent, session_id, id)
            await self._bus.bucket("aliases").put(key, orjson.dumps(alias))
        return approval_id

    async def _on_hold(self, msg: Msg) -> None:
        self.holds.append(HoldChange.model_validate_json(msg.data))
        await msg.respond(b"{}")

    async def _on_decide(self, msg: Msg) -> None:
        reply = DecideReply(status=200)
        if self.decisions:
            reply = DecideReply(status=409, detail="this approval is already decided")
        else:
            request = DecideRequest.model_validate_json(msg.data)
            self.decisions.append(request)
            self.decided.append(msg.subject.partition(".")[2])
            if self.on_decision is not None:
                await self.on_decision(request)
        await msg.respond(reply.dump())
