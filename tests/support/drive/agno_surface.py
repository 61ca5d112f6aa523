"""Shared helpers of the tests of the Agno surface: agents of each kind, and a paused run."""

from __future__ import annotations

from typing import Any

import uuid_utils
from nats.aio.msg import Msg

from penstock.bus import Bus, subjects
from penstock.bus.messages import now
from penstock.bus.records.approvals import ApprovalRecord, DecideRequest
from penstock.dialects.agno.encode import pauses
from penstock.settings import AdkAgent, AgnoAgent, Config
from penstock.sse import Frame
from penstock_approvals.lifecycle.decisions import Approvals
from support.fakes.pretend import PretendRun

URL = "http://127.0.0.1:9"
CONFIG = Config(
    agents=[
        AgnoAgent(
            **{"id": "assistant", "protocol": "agno", "url": URL, "agent": "demo", "name": "Demo"},
            accepts=["dependencies", "session_state", "version"],
        ),
        AgnoAgent(id="crew", protocol="agno", url=URL, agent="demo-team", kind="team"),
        AgnoAgent(id="flow", protocol="agno", url=URL, agent="demo-wf", kind="workflow"),
        AdkAgent(id="helper", protocol="adk", url=URL, agent="vana"),
    ]
)


def named(frames: list[Frame]) -> list[str]:
    """Return the event name of each frame."""
    return [frame.event or "" for frame in frames]


class Paused:
    """A run that waits for decisions about these items, and approvals with the real rules."""

    def __init__(self, bus: Bus, agent: str, items: list[dict[str, Any]]) -> None:
        self.bus = bus
        self.agent = agent
        self.items = items
        self.run = PretendRun(bus)
        self.approval_id = str(uuid_utils.uuid7())
        self.sent = 0
        self.decided: list[dict[str, Any]] = []

    async def start(self) -> None:
        await self.run.record(agent=self.agent, session_id=self.run.session_id)
        await self.run.started()
        await self.listen()

    async def listen(self) -> None:
        """Request the approval of the items, and answer decisions about them."""
        await self.run.say("approval.requested", approval_id=self.approval_id, items=self.items)
        approvals = Approvals(self.bus, f"test-{self.approval_id}")

        async def on_decide(msg: Msg) -> None:
            request = DecideRequest.model_validate_json(msg.data)
            reply = await approvals.take_vote(self.approval_id, request)
            if reply.status == 200:
                self.sent += 1
                self.decided = [item.model_dump(exclude_none=True) for item in request.items]
            await msg.respond(reply.dump())

        await self.bus.subscribe(subjects.decide(self.approval_id), on_decide)

    async def pause(self) -> None:
        record = ApprovalRecord(
            approval_id=self.approval_id,
            run_id=self.run.run_id,
            agent=self.agent,
            session_id=self.run.session_id,
            user_id="anonymous",
            leg=1,
            digest="d",
            items=self.items,
            requested_at=now(),
            updated_at=now(),
        )
        await self.bus.bucket("approvals").put(self.approval_id, record.dump())
        waits = {"reason": "approval_required", "approval_id": self.approval_id}
        await self.run.say("lifecycle.paused", **waits)

    def tools(self, **filled: Any) -> list[dict[str, Any]]:
        """Return the tools as a client sees them, each with these additional fields."""
        return [{**pauses.waiting_tool(item, self.approval_id), **filled} for item in self.items]
