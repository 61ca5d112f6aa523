"""Run Penstock's services in this process over a real NATS server, and drive runs without the edge.

```python
async with pipeline(nats_server.url, config) as penstock:
    run_id = await penstock.start_run("assistant", "confirm A note")
    *_, paused = await penstock.events_until(run_id, "lifecycle.paused")
    await penstock.decide(paused.data["approval_id"], "approve")
    events = await penstock.ended(run_id)
```
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import uuid_utils
from pydantic_settings import SettingsConfigDict

from penstock.bus import Bus, BusSettings, Message, Stored, messages, streams, subjects
from penstock.bus.messages import RawFrame, raw_frame
from penstock.bus.read import direct, follow
from penstock.bus.records.approvals import (
    ApprovalRecord,
    ContinueCommand,
    Decided,
    DecideReply,
    DecideRequest,
    Decision,
)
from penstock.bus.records.runs import CancelCommand, RunRecord, StartCommand
from penstock.bus.write import objects
from penstock.service import Service, connect, drain, stop
from penstock.settings import Config, Settings
from penstock.web.auth import Auth, AuthConfig
from penstock.web.server import Server
from penstock_approvals.service import ApprovalsService
from penstock_connector.service import ConnectorService
from penstock_normalizer.service import NormalizerService
from support.drive.records import run_record
from support.drive.waiting import eventually
from support.fakes.policies import anybody

Services = tuple[type[Service], ...]
PIPELINE: Services = (NormalizerService, ApprovalsService, ConnectorService)
TERMINAL = frozenset({"lifecycle.completed", "lifecycle.failed", "lifecycle.cancelled"})


@dataclass(frozen=True, slots=True)
class Event:
    """One canonical event of EVENTS; `body` is its whole envelope."""

    type: str
    sequence: int
    leg: int
    data: dict[str, Any]
    body: dict[str, Any]
    headers: Mapping[str, str]


@dataclass(slots=True)
class _Followed:
    """A run's events so far; `moved` is set with each new event."""

    follow: follow.Follow | None = None
    stored: list[Stored] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self, batch: list[Stored]) -> None:
        self.stored.extend(batch)
        self.moved.set()

    async def read(self, bus: Bus) -> None:
        """Decode the events that have come; large ones are read from the object store."""
        while len(self.events) < len(self.stored):
            self.events.append(await _event(bus, self.stored[len(self.events)]))


class Pipeline:
    """The running services, and helpers for a test. `http` reaches the routes of all services."""

    def __init__(self, bus: Bus, services: Sequence[Service], http: httpx.AsyncClient) -> None:
        self.bus = bus
        self.services = services
        self.http = http
        self._followed: dict[str, _Followed] = {}

    async def start_run(self, agent: str, message: str = "", **fields: Any) -> str:
        """Store the run's record and publish the start command, as the edge does. Return the id.

        `fields` are fields of `StartCommand`; the run and its session are new unless `fields` names
        them.
        """
        command = await self.register(agent, message, **fields)
        await self.command("start", command)
        return command.run_id

    async def register(self, agent: str, message: str = "", **fields: Any) -> StartCommand:
        """Store the run's record; return the command that would start the run, unpublished."""
        now = messages.now()
        run_id = fields.get("run_id") or new_run_id()
        common = {
            "run_id": run_id,
            "agent": agent,
            "session_id": f"s-{run_id}",
            "user_id": "u1",
            "message": message,
            "created_at": now,
            **fields,
        }
        record = RunRecord.model_validate({**common, "updated_at": now})
        await self.bus.bucket("runs").create(run_id, record.dump())
        return StartCommand.model_validate(common)

    async def cancel(self, run_id: str, by: str = "u1", **more: Any) -> None:
        """Ask for the run's cancellation; `ended` waits for its end."""
        await self.command("cancel", CancelCommand(run_id=run_id, by=by, **more))

    async def command(
        self, kind: str, command: StartCommand | ContinueCommand | CancelCommand
    ) -> None:
        """Publish a command to the connectors. The stream stores it again at each call."""
        await self.publish(kind, command.run_id, command.dump())

    async def publish(self, kind: str, run_id: str, payload: bytes) -> None:
        """Publish a payload as a command. The payload may be invalid."""
        subject = subjects.command("connector", kind, run_id)
        await self.bus.publisher.publish(Message(subject, payload, {}))

    async def decide(
        self,
        approval_id: str,
        decision: str = "approve",
        *,
        note: str | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> DecideReply:
        """Take the same decision for every item; `values` are values by item id."""
        approval = await self.approval(approval_id)
        items = [
            Decided.model_validate(
                {
                    "item_id": item["item_id"],
                    "decision": decision,
                    "value": (values or {}).get(item["item_id"]),
                }
            )
            for item in approval.items
        ]
        return await self.ask(
            approval_id, DecideRequest(decider=anybody("someone"), note=note, items=items)
        )

    async def ask(self, approval_id: str, request: DecideRequest) -> DecideReply:
        """Send the NATS request that carries a decision."""
        answer = await self.bus.request(subjects.decide(approval_id), request.dump(), 30)
        return DecideReply.model_validate_json(answer.data)

    async def write_down(self, command: ContinueCommand, requested: Event) -> None:
        """Store the approval with the decision for this command, as the approvals service does."""
        now = messages.now()
        decision = Decision(outcome="approved", by="someone", at=now, items=command.items)
        record = ApprovalRecord(
            approval_id=command.approval_id,
            run_id=command.run_id,
            agent=command.agent,
            session_id=command.session_id,
            user_id=command.user_id,
            leg=command.leg - 1,
            status="decided",
            digest=requested.data["digest"],
            items=requested.data["items"],
            requested_at=now,
            updated_at=now,
            decision=decision,
        )
        await self.bus.bucket("approvals").put(command.approval_id, record.dump())

    async def continue_command(self, approval_id: str) -> ContinueCommand:
        """Return the command of a decision that was taken, to publish it again."""
        approval = await self.approval(approval_id)
        command = approval.continue_command()
        assert command is not None
        return command

    async def approval(self, approval_id: str) -> ApprovalRecord:
        """Return the approval when the approvals service has stored it."""

        async def kept() -> ApprovalRecord | None:
            entry = await self.bus.bucket("approvals").get(approval_id)
            if entry is None:
                return None
            value = await objects.unwrap(self.bus, entry.value or b"")
            return ApprovalRecord.model_validate_json(value)

        found = await eventually(kept, what=f"the approval {approval_id}")
        assert found is not None
        return found

    async def record(self, run_id: str, status: str | None = None) -> RunRecord:
        """Return the run's record in the list of runs; with a status, when it has this status.

        The record is written after the run's first events, and before all later ones. All may be
        the first ones, so a test that has seen an event must name the status.
        """
        return await run_record(self.bus, run_id, status)

    async def events_until(
        self, run_id: str, until: str | Callable[[Event], bool], timeout_s: float = 60
    ) -> list[Event]:
        """Return the run's events up to the first one that has the type `until` or meets it.

        `until` is a type or a predicate.
        """
        matches = until if callable(until) else lambda event: event.type == until
        followed = await self._follow(run_id)
        seen = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await followed.read(self.bus)
                    while seen < len(followed.events):
                        seen += 1
                        if matches(followed.events[seen - 1]):
                            return followed.events[:seen]
                    if seen == len(followed.stored):
                        followed.moved.clear()
                        await followed.moved.wait()
        except TimeoutError:
            types = [event.type for event in followed.events]
            raise TimeoutError(f"{until} did not come in {timeout_s:g} s, but {types}") from None

    async def ended(self, run_id: str, timeout_s: float = 60) -> list[Event]:
        """Return the run's events up to the terminal one."""
        return await self.events_until(run_id, lambda event: event.type in TERMINAL, timeout_s)

    async def raw(self, run_id: str, writer: str = "upstream") -> list[RawFrame]:
        """Return the run's source frames in RAW, in order."""
        stream, pattern = streams.raw_for(run_id), subjects.raw_stored(run_id, writer)
        return [raw_frame(stored) async for stored in direct.replay(self.bus, stream, pattern)]

    async def body(self, run_id: str, leg: int = 1) -> bytes:
        """Return the upstream's body in RAW, joined from all connections of the leg."""
        return b"".join(
            frame.payload
            for frame in await self.raw(run_id)
            if frame.leg == leg and frame.kind in ("bytes", "part")
        )

    async def stop_following(self) -> None:
        """Stop reading all runs; the pipeline calls this at its end."""
        for followed in self._followed.values():
            if followed.follow is not None:
                await followed.follow.stop()

    async def _follow(self, run_id: str) -> _Followed:
        if run_id not in self._followed:
            followed = self._followed[run_id] = _Followed()
            followed.follow = follow.Follow(self.bus, follow.events(run_id), 1, followed.deliver)
            await followed.follow.start()
        return self._followed[run_id]


class _Given(Settings):
    """The common settings, and those that only some services have: `connect` passes all on."""

    model_config = SettingsConfigDict(extra="allow")


@asynccontextmanager
async def pipeline(
    nats_url: str,
    config: Config,
    services: Sequence[type[Service]] = PIPELINE,
    **settings: Any,
) -> AsyncIterator[Pipeline]:
    """Start these services, each with its own connection, and serve their routes on one free port.

    A service that is named twice gets two instances. `settings` are settings of any service, e.g.
    `pod_ttl_s=2`; each service takes the settings that it has. Without `auth`, all callers are
    anonymous.
    """
    given = {"nats_url": nats_url, "port": 0, "drain_s": 0.5, **settings}
    common = _Given(**given)
    started: list[Service] = []
    keys = tuple(settings.get("content_keys", ()))
    bus = await Bus.connect(BusSettings(url=nats_url, name="test", content_keys=keys))
    try:
        for service_type in services:
            started.append(service_type(await connect(service_type, common, config)))
        for service in started:
            await service.start()
        # If a service has several instances, the first one serves HTTP.
        serving = {each.name: each for each in reversed(started)}.values()
        auth = None
        if "auth" in settings:
            auth = Auth(AuthConfig(**settings["auth"].model_dump()))
        routes = [route for each in serving for route in each.routes]
        server = Server(routes, "127.0.0.1", 0, auth=auth)
        await server.start()
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{server.port}", timeout=30
        ) as http:
            made = Pipeline(bus, started, http)
            try:
                yield made
            finally:
                await made.stop_following()
                await server.stop()
    finally:
        await drain(started, common.drain_s)
        await stop(started)
        for service in started:
            await service.bus.close()
        await bus.close()


def new_run_id() -> str:
    """Return a new run id of the edge's form."""
    return str(uuid_utils.uuid7())


def types(events: Sequence[Event]) -> list[str]:
    """Return the events' types."""
    return [event.type for event in events]


async def _event(bus: Bus, stored: Stored) -> Event:
    body = orjson.loads(await objects.unwrap(bus, stored.payload))
    named = f"{body['event']['category']}.{body['event']['action']}"
    return Event(named, body["sequence"], body["leg"], body["data"], body, stored.headers)
