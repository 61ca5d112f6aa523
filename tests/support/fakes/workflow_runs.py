"""Runs of workflows whose frames the test writes, as the service `workflows` does."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.bus import RawWriter, messages, streams, subjects
from penstock.bus.read import direct
from penstock.bus.records.approvals import ApprovalNews
from penstock.bus.records.runs import RunRecord
from penstock.bus.write.objects import unwrap
from penstock.dialects.workflow import PROTOCOL, WRITER
from penstock.digests import item_digest, request_digest
from support.drive.pipeline import Pipeline, new_run_id


class WorkflowRun:
    """A run of a workflow; `begin` makes it."""

    def __init__(self, penstock: Pipeline, agent: str = "review") -> None:
        self.penstock = penstock
        self.agent = agent
        self.run_id = new_run_id()
        self.writer = RawWriter(penstock.bus, self.run_id, WRITER, f"test/{self.run_id}")

    async def begin(self) -> WorkflowRun:
        """Write the run's record and its first frames; return the run."""
        now = messages.now()
        facts = {"run_id": self.run_id, "agent": self.agent, "session_id": "s", "user_id": "u1"}
        record = RunRecord.model_validate(
            {**facts, "target": WRITER, "created_at": now, "updated_at": now}
        )
        await self.penstock.bus.bucket("runs").create(self.run_id, record.dump())
        opened = {**facts, "protocol": PROTOCOL, "kind": "workflow", "workflow": "code_review"}
        await self.writer.write("open", orjson.dumps(opened), leg=1)
        return self

    async def say(self, type_: str, **data: Any) -> None:
        """Write an event."""
        await self.writer.write("event", orjson.dumps({"type": type_, "data": data}), leg=1)

    async def ask(self, step: str, policy: str = "code-owners", **more: Any) -> str:
        """Ask for an approval; return its id."""
        approval_id = new_run_id()
        item: dict[str, Any] = {
            "item_id": f"step_{step}",
            "kind": "confirmation",
            "tool": policy,
            "args": {"score": 70},
            "description": "Merge with score 70?",
        }
        item["digest"] = item_digest(approval_id, item)
        digest = request_digest([item["digest"]])
        asked = {"approval_id": approval_id, "digest": digest, "items": [item], **more}
        await self.say("approval.requested", deciders_required=1, **asked)
        return approval_id

    async def news(self) -> list[ApprovalNews]:
        """Return the news that `workflows` would get, in their order."""
        bus = self.penstock.bus
        pattern = subjects.command(WRITER, "continue", self.run_id)
        return [
            ApprovalNews.model_validate_json(await unwrap(bus, stored.payload))
            async for stored in direct.replay(bus, streams.COMMANDS, pattern)
        ]

    async def frames_of_approvals(self) -> int:
        """Return how many source frames the approvals service has written to the run."""
        pattern = subjects.raw_stored(self.run_id, "approvals")
        raw = streams.raw_for(self.run_id)
        return len([each async for each in direct.replay(self.penstock.bus, raw, pattern)])
