"""The model's steps are the code's steps: the same names in the same order."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from connector.model.explore import admits
from connector.model.protocol import Protocol, Rules, begin
from connector.model.test_model import CANCELLED, KILLED_TWICE, explored
from penstock_approvals.service import ApprovalsService
from penstock_connector.legs import opener
from penstock_connector.service import ConnectorService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Services, pipeline
from support.drive.short import in_short
from support.drive.steps import STATE, Step
from support.fakes.misbehaving import Misbehaving, agents, plays
from support.fakes.raw import agno_approved, agno_pause
from support.real.connectors import FAST, Hurt, connector_process
from support.real.nats import NatsServer

WRITES = {"create", "put", "update", "delete", "change"}
# The body's bytes and a session's list of runs do not divide runs. A command that was given back is
# delivered again.
NOT_MODELLED = {Step.BYTES, Step.FORGET_ENDED, Step.GIVE_BACK, Step.GIVE_BACK_SENDING}
# The result of each of these methods if it did write. A claim that succeeds returns None.
DONE = {
    Step.CLAIM: None,
    Step.CLAIM_SENDING: None,
    Step.TAKE_OVER_CLAIM: True,
    Step.TAKE_OVER_SENDING: True,
}
OTHERS: Services = (NormalizerService, ApprovalsService)


def test_every_step_is_a_method_of_the_code() -> None:
    for step in Step:
        owner = getattr(importlib.import_module(step.module), step.owner)
        assert inspect.iscoroutinefunction(getattr(owner, step.method)), step


def test_every_method_that_writes_a_record_is_a_step() -> None:
    modules = sorted({step.module for step in Step if step.module.startswith(STATE)})
    writing = {
        f"{name}:{owner.name}.{method.name}"
        for name in modules
        for owner in ast.walk(
            ast.parse(Path(str(importlib.import_module(name).__file__)).read_text())
        )
        if isinstance(owner, ast.ClassDef)
        for method in owner.body
        if isinstance(method, ast.AsyncFunctionDef)
        if any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in WRITES
            for node in ast.walk(method)
        )
    }
    assert writing == {str(step) for step in Step if step.module in modules}


def test_the_model_has_every_step() -> None:
    names = {
        name
        for rules in (CANCELLED, KILLED_TWICE, Rules(alone=False, kills=0))
        for name in explored(rules).names()
    }
    has = {name for name in names if name.isupper()}
    assert has == {step.name for step in Step if step not in NOT_MODELLED}


class Recorded:
    """Record the steps of the connectors in this process in their order.

    The test needs a NATS server of its own. On a shared server, the connector's watchdog would also
    act on runs of other tests.

    A connector writes the record of a leg again if it was slow before the `open`. `is_slow` says
    that it always was; without it, it never was, however busy this machine is.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool = False) -> None:
        monkeypatch.setattr(opener, "FRESH_S", 0.0 if is_slow else math.inf)
        self.names: list[str] = []
        for step in Step:
            if step not in NOT_MODELLED | {Step.PASS_OVER}:  # called often, and seldom writes
                step.patch(self._recording(step), monkeypatch.setattr)

    def _recording(self, step: Step) -> Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]:
        async def around(write: Callable[[], Awaitable[Any]]) -> Any:
            result = await write()
            if result is DONE.get(step, result):
                self.names.append(step.name)
            return result

        return around


@pytest.mark.parametrize(("is_slow", "writes"), [(False, 15), (True, 17)])
async def test_what_a_connector_does_is_what_the_model_does(
    fresh_nats: NatsServer,
    upstream: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    is_slow: bool,
    writes: int,
) -> None:
    """The run pauses, is approved and ends. A slow connector cannot know whether its lease ran out
    meanwhile, so it does what one does that slept while it opened each of the two legs."""
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    recorded = Recorded(monkeypatch, is_slow=is_slow)
    async with pipeline(fresh_nats.url, agents(upstream), (*OTHERS, ConnectorService)) as penstock:
        run_id = await penstock.start_run("agno", "delete")
        *_, asked = await penstock.events_until(run_id, "lifecycle.paused")
        await penstock.decide(asked.data["approval_id"])
        await penstock.ended(run_id)
    rules = Rules(alone=True, kills=0, pods=1, sleeps=2 if is_slow else 0)
    of_the_model(recorded.names, rules, "A")
    assert len(recorded.names) == writes


@pytest.mark.parametrize("step", in_short(["NOTE", "OPEN", "END", "LEAVE"], ["OPEN", "LEAVE"]))
async def test_what_a_successor_does_is_what_the_model_does(
    fresh_nats: NatsServer,
    upstream: Misbehaving,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    step: str,
) -> None:
    """Another connector was killed after a step of the first leg."""
    upstream.script(plays(agno_pause()), plays(agno_approved()))
    config = agents(upstream)
    async with pipeline(fresh_nats.url, config, OTHERS) as penstock:
        dies = Hurt(Step[step], "after")
        async with connector_process(penstock.bus, config, tmp_path, dies, ack_wait_s=1) as victim:
            run_id = await penstock.start_run("agno", "delete")
            await victim.died()
        recorded = Recorded(monkeypatch)
        async with pipeline(fresh_nats.url, config, (ConnectorService,), **FAST, ack_wait_s=1):
            events = await penstock.events_until(
                run_id, lambda event: event.type in ("lifecycle.paused", "lifecycle.failed")
            )
            if events[-1].type == "lifecycle.paused":
                await penstock.decide(events[-1].data["approval_id"])
                await penstock.ended(run_id)
            await nobody_holds(penstock.bus.bucket("claims").keys, run_id)
    assert recorded.names
    of_the_model(recorded.names, Rules(alone=True, kills=1), "B")


async def nobody_holds(keys: Callable[[str], Awaitable[list[str]]], run_id: str) -> None:
    async with asyncio.timeout(20):
        while await keys(f"active.*.{run_id}"):
            await asyncio.sleep(0.01)


def of_the_model(names: list[str], rules: Rules, who: str) -> None:
    done = admits(begin(rules), Protocol(rules).moves, who, names)
    assert done == len(names), f"the model does {names[:done]}, and not then {names[done]}"
