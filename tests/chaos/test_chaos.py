"""Real processes are killed, paused and cut off, and every run is checked."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.chaos.harness import play
from support.chaos.hurt_at import everywhere
from support.chaos.report import Report, check_floors, summary
from support.chaos.schedule import Fault, Shape
from support.chaos.stage import Round
from support.drive.steps import Step
from support.fakes.clocks import libfaketime
from support.real.upstreams import Upstream

pytestmark = pytest.mark.real

SEED = int(os.environ.get("PENSTOCK_CHAOS_SEED") or 1)
KILLS = int(os.environ.get("PENSTOCK_CHAOS_KILLS") or 60)  # of all rounds together
KILLS_PER_ROUND = 63
ROUNDS = math.ceil(KILLS / KILLS_PER_ROUND)
COMPLETED = 0.6  # at least, of all runs; a tenth is cancelled, and some stay paused

# Leases that expire within seconds, so that they also expire in a short round.
HASTY = {
    "pod_ttl_s": 8,
    "pod_renew_s": 1,
    "reap_s": 1,
    "partition_ttl_s": 3,
    "partition_renew_s": 1,
    "ack_wait_s": 5,
    "drain_s": 1,
}


@pytest.fixture(scope="module")
def played() -> list[Report]:
    """Return the list of the reports of all rounds that were played."""
    return []


def settle(report: Report, completed: float, reattached: int = 0) -> None:
    """Fail on a fault; skip if the machine was starved, because the round then proves nothing."""
    report.violations += check_floors(report, completed, reattached)
    print(report)
    assert not report.faults
    if report.excused:
        pytest.skip(f"starved, play it again on a machine with more time: {report.load}")


@pytest.mark.timeout(180)
async def test_every_run_is_complete_at_any_kill(
    tmp_path: Path, agno_server: Upstream, adk_server: Upstream
) -> None:
    servers = {"agno": agno_server, "adk": adk_server}
    services = {"connector": 2, "normalizer": 2, "approvals": 2, "edge": 2}
    shape = Shape(
        {**services, "broker": 1, "upstream": 2}, every_s=1.6, pause_s={"normalizer": 4.0}
    )
    short = Round(seed=1, kills=5, shape=shape, runs=18, runs_per_s=2, settings=HASTY)
    report = await play(short, tmp_path, servers)
    settle(report, COMPLETED)
    assert sum(report.kills.values()) >= 4  # one may have ended before its kill


@pytest.mark.chaos
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_every_run_is_complete_at_any_kill_of_a_cluster(
    tmp_path: Path,
    patient_agno: Upstream,
    own_adk: Upstream,
    pydantic_ai_server: Upstream,
    seed: int,
    played: list[Report],
) -> None:
    """Some clocks are wrong, all processes are killed once, and so are two of three brokers."""
    servers = {"agno": patient_agno, "adk": own_adk, "agui": pydantic_ai_server}
    services = {"connector": 2, "normalizer": 3, "approvals": 2, "edge": 2}
    shape = Shape({**services, "broker": 3, "upstream": 3}, alone=("majority", "everything"))
    long = Round(
        seed, KILLS_PER_ROUND, shape, runs=250, runs_per_s=1.5, clocks=clocks(seed, services)
    )
    report = await play(long, tmp_path, servers)
    played.append(report)
    settle(report, COMPLETED, reattached=1)


AUTOMATIONS = Shape(
    {
        **{"connector": 1, "normalizer": 1, "approvals": 1, "edge": 1, "automations": 2},
        **{"broker": 1, "upstream": 2},
    },
    every_s=2.0,
    pause_s={"normalizer": 4.0},
)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_every_event_and_rule_has_one_outcome_at_any_kill(
    tmp_path: Path,
    agno_server: Upstream,
    adk_server: Upstream,
    seed: int,
    played: list[Report],
) -> None:
    servers = {"agno": agno_server, "adk": adk_server}
    round_ = Round(seed, 20, AUTOMATIONS, runs=60, runs_per_s=1.5, settings=HASTY)
    report = await play(round_, tmp_path, servers)
    played.append(report)
    settle(report, COMPLETED)
    assert report.kills["automations"] >= 3


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_where_queues_do_not_read_the_stream_the_same_checks_find_deliveries_without_outcome(
    tmp_path: Path, agno_server: Upstream, adk_server: Upstream
) -> None:
    servers = {"agno": agno_server, "adk": adk_server}
    launchers = {"automations": (*without("between"), "penstock_automations")}
    round_ = Round(
        seed=9,
        kills=0,
        shape=AUTOMATIONS,
        runs=60,
        runs_per_s=6,
        launchers=launchers,
        settings=HASTY | {"match_batch": 1},
        end_timeout_s=30,
    )
    report = await play(round_, tmp_path, servers)
    print(report)
    assert "deliveries" in {violation.check for violation in report.violations}


WORKFLOWS = Shape(
    {
        **{"connector": 1, "normalizer": 1, "approvals": 1, "edge": 1, "workflows": 2},
        **{"broker": 1, "upstream": 2},
    },
    every_s=2.0,
    pause_s={"normalizer": 4.0},
)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_every_workflow_ends_and_calls_each_step_once_at_any_kill(
    tmp_path: Path,
    agno_server: Upstream,
    adk_server: Upstream,
    seed: int,
    played: list[Report],
) -> None:
    servers = {"agno": agno_server, "adk": adk_server}
    settings = HASTY | {"input_ack_wait_s": 3}
    round_ = Round(seed, 20, WORKFLOWS, runs=40, runs_per_s=1, settings=settings)
    report = await play(round_, tmp_path, servers)
    played.append(report)
    settle(report, COMPLETED)
    assert report.kills["workflows"] >= 3


def clocks(seed: int, services: Mapping[str, int]) -> dict[tuple[str, int], float]:
    """Return one wrong clock per service, with an offset that the seed gives.

    Without libfaketime, all processes have the real clock.
    """
    chance = random.Random(f"clocks {seed}")
    return {
        (service, chance.randrange(count)): float(chance.choice((-75, -20, 20, 75)))
        for service, count in services.items()
    }


Launchers = Mapping[str, Sequence[str]]

BY_HAND: dict[str, Any] = {
    "settings": HASTY,
    "end_timeout_s": 45.0,  # longer than the watchdog and all leases need
}


def by(*launcher: str) -> dict[str, tuple[str, ...]]:
    """Return the launchers that start connectors by this test module."""
    return {"connector": (*launcher, "penstock_connector")}


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
async def test_every_run_is_complete_when_a_connector_is_killed_at_any_write(
    tmp_path: Path,
    agno_server: Upstream,
    adk_server: Upstream,
    pydantic_ai_server: Upstream,
    seed: int,
    played: list[Report],
) -> None:
    """Each connector process kills itself at another write, except for one connector."""
    services = {"connector": 3, "normalizer": 1, "approvals": 2, "edge": 1}
    round_ = Round(
        seed,
        kills=0,
        shape=Shape({**services, "broker": 1, "upstream": 3}),
        runs=250,
        runs_per_s=3,
        launchers=by("support.chaos.hurt_at"),
        crashes={"connector": everywhere(seed)},
        # A command that is not finished in ack_wait is delivered again; after 15 deliveries it
        # becomes a dead letter.
        **BY_HAND | {"settings": HASTY | {"ack_wait_s": 20}},
    )
    servers = {"agno": agno_server, "adk": adk_server, "agui": pydantic_ai_server}
    report = await play(round_, tmp_path, servers)
    played.append(report)
    settle(report, completed=0.5)
    assert report.kills["connector"] >= 15


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stream", ["RAW", "EVENTS", "COMMANDS"])
async def test_every_run_is_complete_or_reports_a_loss_when_nats_has_an_older_store(
    tmp_path: Path, agno_server: Upstream, adk_server: Upstream, stream: str
) -> None:
    report = await _with_an_older_store(tmp_path, agno_server, adk_server, stream, {})
    settle(report, completed=0.3)


@pytest.mark.chaos
@pytest.mark.timeout(300)
async def test_where_an_older_store_is_taken_for_whole_the_same_checks_find_what_is_lost(
    tmp_path: Path, agno_server: Upstream, adk_server: Upstream
) -> None:
    services = ("connector", "normalizer", "approvals", "edge")
    launchers = {each: (*without("continuity"), f"penstock_{each}") for each in services}
    report = await _with_an_older_store(tmp_path, agno_server, adk_server, "RAW", launchers)
    print(report)
    new = [each for each in report.violations if each.check == "end"]
    assert len(new) > 3, "runs that came afterwards get no events"


async def _with_an_older_store(
    folder: Path, agno: Upstream, adk: Upstream, stream: str, launchers: Launchers
) -> Report:
    """Play a round with one server, whose stream returns to its state of some seconds before.

    The services keep running.
    """
    services = {"connector": 2, "normalizer": 2, "approvals": 1, "edge": 2}
    round_ = Round(
        seed=5,
        kills=0,
        shape=Shape({**services, "broker": 1, "upstream": 2}),
        runs=60,
        runs_per_s=3,
        launchers=launchers,
        faults=(Fault(4.0, "older", "broker", 0, 5.0),),
        older=(stream,),
        **BY_HAND,
    )
    return await play(round_, folder, {"agno": agno, "adk": adk})


def without(fix: str) -> tuple[str, str]:
    return "support.chaos.without", fix


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "without the fix"])
async def test_a_connector_that_dies_before_it_gives_up_its_turn_blocks_nobody(
    tmp_path: Path, agno_server: Upstream, adk_server: Upstream, fixed: bool
) -> None:
    """Without the fix, the checks find runs that wait for ever."""
    launcher = ("support.chaos.hurt_at",) if fixed else without("passing-over")
    services = {"connector": 2, "normalizer": 1, "approvals": 1, "edge": 1}
    round_ = Round(
        seed=7,
        kills=0,
        shape=Shape({**services, "broker": 1, "upstream": 2}),
        runs=60,
        runs_per_s=3,
        launchers=by(*launcher),
        crashes={"connector": [f"{Step.LEAVE.name} before 4"]},  # only the first connector, once
        asking=1.0,
        # The interval lets the decision come before any connector looks for the ended one.
        **BY_HAND | {"settings": HASTY | {"reap_s": 20}},
    )
    report = await play(round_, tmp_path, {"agno": agno_server, "adk": adk_server})
    if fixed:
        settle(report, completed=0.4)
        return
    print(report)
    found = {violation.check for violation in report.violations}
    if not found and report.load.starved:
        pytest.skip("starved: the decision came after a connector had looked for the ended one")
    assert {"end", "queues"} <= found


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.skipif(libfaketime() is None, reason="libfaketime is not installed (apt: faketime)")
@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "without the fix"])
async def test_what_a_dead_connector_sent_is_not_sent_again_though_its_clock_was_ahead(
    tmp_path: Path, agno_server: Upstream, adk_server: Upstream, fixed: bool
) -> None:
    """Without the fix, the checks find starts that were sent twice."""
    services = {"connector": 2, "normalizer": 1, "approvals": 1, "edge": 1}
    round_ = Round(
        seed=8,
        kills=0,
        shape=Shape({**services, "broker": 1, "upstream": 2}),
        runs=60,
        runs_per_s=3,
        launchers={} if fixed else by(*without("sequences")),
        clocks={("connector", 0): 75.0},
        faults=tuple(Fault(at_s, "kill", "connector", 0, 0.5) for at_s in (4.0, 10.0, 16.0)),
        **BY_HAND,
    )
    report = await play(round_, tmp_path, {"agno": agno_server, "adk": adk_server})
    if fixed:
        settle(report, completed=0.4)
    else:
        print(report)
        assert "at most once" in {violation.check for violation in report.violations}


@pytest.mark.chaos
async def test_without_the_fence_the_same_checks_find_what_a_zombie_wrote(
    tmp_path: Path, agno_server: Upstream, adk_server: Upstream
) -> None:
    report = await _with_a_zombie(tmp_path, agno_server, adk_server, fenced=False)
    print(report)
    assert {"numbers", "content"} <= {violation.check for violation in report.violations}


@pytest.mark.chaos
async def test_with_the_fence_a_zombie_writes_nothing(
    tmp_path: Path, agno_server: Upstream, adk_server: Upstream
) -> None:
    report = await _with_a_zombie(tmp_path, agno_server, adk_server, fenced=True)
    settle(report, completed=0.5)


async def _with_a_zombie(folder: Path, agno: Upstream, adk: Upstream, fenced: bool) -> Report:
    """Play a round in which a normalizer is paused for longer than its leases last.

    The runs continue meanwhile.
    """
    services = {"connector": 1, "normalizer": 2, "approvals": 1, "edge": 1}
    round_ = Round(
        seed=3,
        kills=0,
        shape=Shape({**services, "broker": 1, "upstream": 2}),
        runs=24,
        end_timeout_s=30,
        runs_per_s=6,
        settings=HASTY | {"partition_ttl_s": 2, "partition_renew_s": 0.5},
        launchers={}
        if fenced
        else {"normalizer": ("support.chaos.unfenced", "penstock_normalizer")},
        faults=(Fault(1.5, "pause", "normalizer", 0, 4.0),),
    )
    return await play(round_, folder, {"agno": agno, "adk": adk})


@pytest.mark.chaos
def test_all_rounds_together_killed_as_often_as_was_asked_for(played: list[Report]) -> None:
    """This test runs after all rounds and prints their summary."""
    if not played:
        pytest.skip("no round was played")
    print(f"\n{summary(played)}")
    assert sum(sum(report.kills.values()) for report in played) >= KILLS
