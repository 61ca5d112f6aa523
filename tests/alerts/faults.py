"""The faults of a watched run, and the alerts that each must make fire.

Each fault is a context: it is there inside, and gone after it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from alerts.load import ASKING, FLOOD, LONG, Load
from penstock.bus import messages
from penstock.bus.records.runs import RunRecord
from support.drive.dead_letters import a_cancel, publish
from support.drive.pipeline import new_run_id
from support.fakes.clocks import ShiftedClock, libfaketime
from support.fakes.receiver import OK, Behaviour, Received, answers
from support.real.deployment import Instance
from support.real.processes import pid_of

AHEAD_S: Final = 45.0
LONG_RUNS: Final = 200
WAITING_STARTS: Final = 50


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, how long it lasts, and the alerts that must fire during it or soon after it."""

    name: str
    lasts_s: float
    make: Callable[[Load], AbstractAsyncContextManager[None]]
    alerts: tuple[str, ...]
    # Seconds until the next fault; without it, the next one begins with this one.
    then_s: float | None = 20.0


@asynccontextmanager
async def an_approval_waits(load: Load) -> AsyncIterator[None]:
    """Nobody decides an approval."""
    run_id = await load.penstock.run(ASKING, "hello")
    seen = await load.penstock.until(run_id, "approval.requested")
    yield
    await load.penstock.decide(seen[-1].data["approval_id"], "approve")


@asynccontextmanager
async def a_start_is_lost(load: Load) -> AsyncIterator[None]:
    """A run has its record and no command, as after the death of an edge between the two."""
    now = messages.now()
    record = RunRecord.model_validate(
        {
            **{"run_id": new_run_id(), "agent": LONG, "session_id": "s-lost", "user_id": "u1"},
            **{"created_at": now, "updated_at": now},
        }
    )
    await load.bus.bucket("runs").create(record.run_id, record.dump())
    yield


@asynccontextmanager
async def agents_fail_and_answer_late(load: Load) -> AsyncIterator[None]:
    """One agent fails, one takes 12 s to answer, and a step of each workflow fails."""
    load.workflows_fail = True

    async def work() -> None:
        while True:
            load.spawn(load.penstock.run("broken", "it fails"))
            load.spawn(load.penstock.run("sluggish", "slow-12"))
            await asyncio.sleep(3)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        load.workflows_fail = False
        task.cancel()


@asynccontextmanager
async def the_receiver_mostly_fails(load: Load) -> AsyncIterator[None]:
    """The receiver of all webhooks answers three of four requests with 500.

    Five failures in a row would open its breaker, which ends the attempts.
    """
    numbers = itertools.count()

    async def behave(writer: asyncio.StreamWriter, received: Received) -> None:
        await (answers(500) if next(numbers) % 4 else OK)(writer, received)

    async with _receiver(load, behave):
        yield


@asynccontextmanager
async def the_receiver_fails(load: Load) -> AsyncIterator[None]:
    """The receiver of all webhooks answers 500."""
    async with _receiver(load, answers(500)):
        yield


@asynccontextmanager
async def _receiver(load: Load, behave: Behaviour) -> AsyncIterator[None]:
    load.webhooks.usual.update(dict.fromkeys(("/hook", "/orders", "/minutes"), behave))
    try:
        yield
    finally:
        load.webhooks.usual.clear()


@asynccontextmanager
async def no_normalizer_and_lost_frames(load: Load) -> AsyncIterator[None]:
    """The normalizer is killed, and NATS loses the frames that come meanwhile."""
    [normalizer] = load.penstock.of("normalizer")
    await load.penstock.kill(normalizer)
    yield
    await load.bus.api("STREAM.PURGE.RAW")
    await load.penstock.start("normalizer", probe="livez")
    load.retarget()


@asynccontextmanager
async def a_slow_normalizer(load: Load) -> AsyncIterator[None]:
    """The normalizer gets a tenth of a core while one run after another floods."""
    [normalizer] = load.penstock.of("normalizer")

    async def flood() -> None:
        while True:
            load.spawn(load.penstock.run(FLOOD, "hello"))
            await asyncio.sleep(4)

    task = asyncio.create_task(flood())
    try:
        async with _slow(normalizer, 0.02):
            yield
    finally:
        task.cancel()


@asynccontextmanager
async def _slow(instance: Instance, runs_s: float) -> AsyncIterator[None]:
    """Stop a process for most of each fifth of a second."""
    pid = pid_of(instance.process)

    async def hold() -> None:
        while True:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(0.2 - runs_s)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(runs_s)

    task = asyncio.create_task(hold())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def nats_is_away(load: Load) -> AsyncIterator[None]:
    """The NATS server is stopped."""
    await asyncio.to_thread(load.nats.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(load.nats.start)


@asynccontextmanager
async def a_wrong_clock(load: Load) -> AsyncIterator[None]:
    """One more edge has a clock that is ahead."""
    library = libfaketime()
    assert library is not None
    clock = ShiftedClock(library, load.penstock.folder / "edge.clock")
    clock.set(AHEAD_S)
    edge = await load.penstock.start("edge", before=clock.command, probe="livez")
    load.penstock.instances.remove(edge)  # clients do not use it
    load.prometheus.scrape([*load.penstock.instances, edge])
    try:
        yield
    finally:
        await asyncio.to_thread(edge.process.stop)
        load.retarget()


@asynccontextmanager
async def an_unreadable_command(load: Load) -> AsyncIterator[None]:
    """A message that no connector can read becomes a dead letter."""
    await publish(load.bus, a_cancel(), b"this is no command")
    yield


@asynccontextmanager
async def an_unreadable_approval(load: Load) -> AsyncIterator[None]:
    """The record of a decided approval cannot be read."""
    bucket, id = load.bus.bucket("approvals"), "watched"
    await bucket.put(id, b"this is no record")
    await bucket.put(f"outbox.{id}", b"0")
    yield
    await bucket.delete(f"outbox.{id}")
    await bucket.delete(id)


@asynccontextmanager
async def a_full_stream(load: Load) -> AsyncIterator[None]:
    """The stream of frames may hold hardly more than it holds."""
    info = await load.bus.api("STREAM.INFO.RAW")
    held = info["state"]["bytes"]
    await load.bus.api("STREAM.UPDATE.RAW", {**info["config"], "max_bytes": int(held * 1.02)})
    yield
    await load.bus.api("STREAM.UPDATE.RAW", info["config"])


@asynccontextmanager
async def too_many_long_runs(load: Load) -> AsyncIterator[None]:
    """More runs start than the connectors have legs for."""
    for _ in range(LONG_RUNS):
        load.spawn(load.penstock.run(LONG, "hello"))
        await asyncio.sleep(0.02)
    yield


@asynccontextmanager
async def a_service_is_gone(load: Load) -> AsyncIterator[None]:
    """The only process of the workflows service is killed, and not started again for a while.

    The starts of workflows wait meanwhile.
    """
    [workflows] = load.penstock.of("workflows")
    await load.penstock.kill(workflows)
    load.retarget()
    for _ in range(WAITING_STARTS):
        load.spawn(load.workflow())
    yield
    await load.penstock.start("workflows", port=workflows.port)
    load.retarget()


FAULTS: Final = (
    Fault("approval waits", 150, an_approval_waits, ("PenstockApprovalsOld",), None),
    Fault("start lost", 1, a_start_is_lost, ("PenstockRunsStuck",), None),
    Fault(
        *("receiver mostly fails", 130, the_receiver_mostly_fails),
        ("PenstockDeliveriesFail",),
        None,
    ),
    Fault(
        *("agents fail, are late", 120, agents_fail_and_answer_late),
        ("PenstockRunsFail", "PenstockFirstBytesLate", "PenstockWorkflowsFail"),
    ),
    Fault(
        *("no normalizer, frames lost", 20, no_normalizer_and_lost_frames),
        ("PenstockNoNormalizer", "PenstockServiceGone", "PenstockHistoryLost"),
    ),
    Fault(
        *("slow normalizer", 95, a_slow_normalizer),
        ("PenstockNormalizerLags", "PenstockEventsLate", "PenstockDeliveryLate"),
        30,
    ),
    Fault(
        *("NATS away", 45, nats_is_away),
        ("PenstockNatsAway", "PenstockNotReady", "PenstockRequestsFail"),
        30,
    ),
    Fault("receiver fails", 125, the_receiver_fails, ("PenstockBreakersOpen",), None),
    Fault("wrong clock", 50, a_wrong_clock, ("PenstockClockWrong",), None),
    Fault("unreadable command", 1, an_unreadable_command, ("PenstockDeadLetters",), None),
    Fault("unreadable approval", 60, an_unreadable_approval, ("PenstockApprovalsStuck",), None),
    Fault("full stream", 70, a_full_stream, ("PenstockStreamFull",), None),
    Fault(
        *("service gone", 90, a_service_is_gone),
        ("PenstockServiceGone", "PenstockReaderLags"),
    ),
    Fault(
        *("too many runs", 160, too_many_long_runs),
        ("PenstockStartsWait", "PenstockRunsStartLate"),
    ),
)
# What no cheap fault provokes; tests/alerts/penstock.test.yaml tests the rules.
NOT_PROVOKED: Final = {
    "PenstockPriceUnknown": "the models of the load are scripts, and have no prices",
    "PenstockGaps": "NATS must drop live messages of a connection that it keeps",
    "PenstockWorkflowsBlocked": "the service must run, take no input and end no step",
}
