"""A workflow's run with the runs of its steps, whose events are published as the normalizer does.

The runs of two workers speak at the same time, with the same ids. One of them waits for a person.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uuid_utils

from penstock.bus import Bus
from penstock.bus.shards import new_run_id
from penstock.bus.subjects import shard_of
from support.fakes.pretend import PretendRun

ITEM = {"item_id": "c1", "kind": "confirmation", "digest": "0" * 64, "editable": False}


class PretendTree:
    """The runs by name; the run of the workflow is `root`."""

    def __init__(self, bus: Bus, shard: int = 0) -> None:
        self._bus = bus
        self._shard = shard
        self.runs: dict[str, PretendRun] = {}
        self.approval_id = str(uuid_utils.uuid7())
        self.item = {**ITEM, "tool_call_id": "c1", "tool": "restart", "args": {"host": 1}}
        self.asked = False
        self.decided = asyncio.Event()
        self.on_pause: Callable[[], Awaitable[None]] | None = None  # waits for the decision
        self._depths: dict[str, int] = {}

    @property
    def root(self) -> PretendRun:
        """The run of the workflow."""
        return self.runs["root"]

    @property
    def places(self) -> list[int]:
        """The stream sequences of all published events, in order."""
        return sorted(place for run in self.runs.values() for place in run.places)

    async def begin(self, **record: Any) -> None:
        """Make the root and its record; nothing is published yet."""
        self.adopt(self._new_id(), "thread-1")
        await self.root.record(agent="diagnosis", target="workflows", **record)

    def adopt(self, run_id: str, session_id: str) -> None:
        """Take the run that the edge has started as the root."""
        self.runs["root"] = PretendRun(self._bus, run_id, session_id)
        self._depths["root"] = 0
        own = {**_source("diagnosis"), "agent_type": "global_supervisor"}
        self.root.envelope = {"source": own}

    async def step(
        self, parent: str, step: str, *, team: str = "", agent: str = "", **data: Any
    ) -> PretendRun:
        """Publish the begin of a step of a run; return the step's run, which has not begun.

        The step dispatches a team if `team` is its name, and a worker otherwise.
        """
        step_id, agent = f"step_{step}", agent or step
        run = PretendRun(self._bus, self._new_id(), f"session-{step}")
        self.runs[step] = run
        depth = self._depths[step] = self._depths[parent] + 1
        by = self.runs[parent]
        run.envelope = {
            "parent_run_id": by.run_id,
            "step_id": step_id,
            "workflow_depth": depth,
            "source": _source(agent),
        }
        await run.record(
            agent=agent, parent_run_id=by.run_id, step_id=step_id, workflow_depth=depth
        )
        dispatched = {"task": f"Do {step}", "subrun_id": run.run_id}
        if team:
            data = {"role": "team_supervisor", "team_name": team, **data}
            await self.say(parent, "dispatch.team", step_id, team_name=team, **dispatched)
        else:
            data = {"role": "worker", **data}
            await self.say(parent, "dispatch.worker", step_id, worker_name=agent, **dispatched)
        began = {"description": f"Doing {step}", "kind": "step", "child_run_id": run.run_id}
        fields = {**_step(by, step_id), **began, **data}
        await self.say(parent, "workflow.step_started", step_id, **fields)
        return run

    async def done(self, parent: str, step: str, output: Any = None, error: str = "") -> None:
        """Publish the end of a step's run and of the step."""
        step_id, run_id = f"step_{step}", self.runs[step].run_id
        fields = {**_step(self.runs[parent], step_id), "child_run_id": run_id}
        over = {"subrun_id": run_id, "status": "failed" if error else "completed"}
        await self.say(parent, "dispatch.finished", step_id, **over)
        if error:
            info = {"code": "upstream_error", "message": error}
            await self.say(parent, "workflow.step_failed", step_id, **fields, error=info)
        else:
            await self.say(parent, "workflow.step_completed", step_id, **fields, output=output)

    async def say(self, run: str, type: str, step: str = "", /, **data: Any) -> int:
        """Publish an event of a run, with this step id in its envelope."""
        by = self.runs[run]
        before = by.envelope
        if step:
            by.envelope = {**before, "step_id": step}
        try:
            return await by.say(type, **data)
        finally:
            by.envelope = before

    async def diagnosis(self) -> None:
        """Play a whole tree: a plan, two teams of which one has two workers, and a failed step."""
        say = self.say
        root = self.root
        await root.say("lifecycle.started", agent="diagnosis", user_id="anonymous", message="Why?")
        await say("root", "workflow.started", workflow="diagnosis", run_id=root.run_id)
        plan = await self.step("root", "plan")
        await plan.say("lifecycle.started", agent="plan", user_id="anonymous", message="Plan it")
        await plan.say("llm.message_started", message_id="m1")
        await plan.text("The ", "plan")
        await plan.say("llm.message_completed", message_id="m1", content="The plan")
        await plan.say("state.snapshot", snapshot={"of": "plan"})
        await plan.completed("The plan")
        await plan.say("automation.triggered", workflow="late", trigger="after the end")
        await self.done("root", "plan", {"teams": 2})
        await self._transition("plan", "team")
        await self._teams()
        await self.done("root", "team", ["report"])
        await say("root", "workflow.completed", run_id=root.run_id, result="It is the gateway.")
        await root.say("lifecycle.completed", summary="It is the gateway.")
        await root.say("automation.triggered", workflow="late", trigger="after the end")

    async def _teams(self) -> None:
        say = self.say
        team = await self.step("root", "team", team="Payments")
        failing = await self.step("root", "other")
        await team.say("lifecycle.started", agent="team", user_id="anonymous")
        await failing.say("lifecycle.started", agent="other", user_id="anonymous")
        await say("team", "workflow.started", workflow="team", run_id=team.run_id)
        workers = [await self.step("team", name) for name in ("logs", "metrics")]
        for worker in workers:
            await worker.say("lifecycle.started", agent="w", user_id="anonymous", message="Go")
        for piece in ("one ", "two "):
            for worker in workers:
                await worker.text(piece)
        await failing.text("half")
        await failing.say("llm.message_completed", message_id="m1", content="half")
        await failing.say("lifecycle.failed", error="It broke", code="upstream_error")
        await self.done("root", "other", error="It broke")
        for number, worker in enumerate(workers):
            await worker.say("llm.reasoning", reasoning_id="r1", thought="Hm", final=True)
            await worker.say("state.snapshot", snapshot={"of": number})
            call = {"tool_call_id": "c1", "tool": "restart", "args": {"host": number}}
            await worker.say("llm.tool_call", **call, pending=number == 1)
        await workers[0].say(
            "llm.tool_result", tool_call_id="c1", tool="restart", outcome="ok", result="up"
        )
        await self._pause(workers[1])
        for worker in workers:
            await worker.text("three")
            await worker.say("llm.message_completed", message_id="m1", content="one two three")
            await worker.completed("one two three")
        for name in ("logs", "metrics"):
            await self.done("team", name, name)
        await team.completed("report")

    async def _pause(self, worker: PretendRun) -> None:
        """Let a worker wait for a person, and with it the whole workflow."""
        asked = {"approval_id": self.approval_id, "digest": "0" * 64, "items": [self.item]}
        paused = {"reason": "approval_required", "approval_id": self.approval_id}
        await worker.say("approval.requested", **asked)
        await worker.say("lifecycle.paused", **paused)
        await self.root.say("lifecycle.paused", **paused)
        self.asked = True
        if self.on_pause is not None:
            await self.on_pause()
        decided = [{"item_id": "c1", "decision": "approve"}]
        await worker.say("approval.decided", approval_id=self.approval_id, by="ada", items=decided)
        worker.leg_number = 2
        await worker.say("lifecycle.resumed", approval_id=self.approval_id)
        await worker.say(
            "llm.tool_result", tool_call_id="c1", tool="restart", outcome="ok", result="up"
        )
        await self.root.say("lifecycle.resumed", approval_id=self.approval_id)

    async def _transition(self, before: str, after: str) -> None:
        await self.say(
            *("root", "workflow.transition"),
            run_id=self.root.run_id,
            from_step=before,
            to_step=after,
            reason=f"{before}_complete",
        )

    def _new_id(self) -> str:
        shard = shard_of(self.root.run_id) if "root" in self.runs else self._shard
        return new_run_id(shard, time.time())


def _step(run: PretendRun, step_id: str) -> dict[str, str]:
    return {"run_id": run.run_id, "step_id": step_id}


def _source(name: str) -> dict[str, Any]:
    return {"agent_id": name, "agent_type": "agent", "agent_name": name, "team_name": None}
