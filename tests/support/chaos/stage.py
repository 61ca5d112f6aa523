"""All that is around the services of a round: brokers, agent servers, receivers, and the load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import yaml

from support.chaos import deliveries, flows, gather, links
from support.chaos.brokers import Brokers, running
from support.chaos.checker import Violation
from support.chaos.clients import Address, Story
from support.chaos.evidence import Evidence, Processes, Remains, told
from support.chaos.fleet import Clocks
from support.chaos.flows import Flows
from support.chaos.plans import ASKING, Agent, Plan, agui_scripts, plans
from support.chaos.recorder import Recorder, recorder
from support.chaos.report import Report
from support.chaos.schedule import Fault, Shape
from support.fakes.receiver import Receiver
from support.real.upstreams import Upstream

AROUND: Final = ("broker", "upstream")  # the members of a shape that are no services
NOT_IN_TIME: Final = (TimeoutError, asyncio.CancelledError)
_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Round:
    """The parameters of a round. The same seed gives the same runs and the same faults."""

    seed: int
    kills: int
    shape: Shape
    runs: int  # at least; further runs start while faults are left
    runs_per_s: float
    settings: Mapping[str, object] = field(default_factory=dict)  # as PENSTOCK_<NAME>
    launchers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # The round ends if, after the last fault, no client has seen a new event for this long.
    end_timeout_s: float = 120.0
    faults: Sequence[Fault] = ()  # used in place of the faults that the seed gives
    clocks: Clocks = field(default_factory=dict)  # seconds ahead, by process
    crashes: Mapping[str, Iterable[str]] = field(default_factory=dict)  # see `Slot.crashes`
    asking: float = ASKING  # the share of the runs that wait for a decision
    older: Sequence[str] = ()  # the streams whose older store a fault puts back


@dataclass(frozen=True, slots=True)
class Stage:
    """All that is around the services. `environment` is what each service needs to know of it."""

    brokers: Brokers
    recorders: Sequence[Recorder]
    http: httpx.AsyncClient
    hooks: Receiver | None
    flowing: Flows
    environment: Mapping[str, str]


@asynccontextmanager
async def staged(
    round_: Round, folder: Path, upstreams: Mapping[str, Upstream]
) -> AsyncIterator[Stage]:
    """Start all that is around the services."""
    counts = round_.shape.count
    async with AsyncExitStack() as stack:
        recorders = [
            await stack.enter_async_context(recorder(each.url)) for each in upstreams.values()
        ]
        proxies = await stack.enter_async_context(links.links(counts["broker"]))
        servers = await stack.enter_async_context(running(counts["broker"], proxies, folder))
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                timeout=httpx.Timeout(15, read=60), limits=httpx.Limits(max_connections=None)
            )
        )
        brokers = Brokers(servers, proxies)
        urls = {name: each.url for name, each in zip(upstreams, recorders, strict=True)}
        hooks, settings = None, dict[str, object]()
        if deliveries.SERVICE in counts:
            found = await stack.enter_async_context(deliveries.hooks(folder, round_.seed))
            hooks, settings = found
        flowing = await stack.enter_async_context(flows.flows(brokers.url, flows.SERVICE in counts))
        made = environment(
            round_, folder, brokers.url, urls, counts["broker"], settings, flowing.agents
        )
        yield Stage(brokers, recorders, http, hooks, flowing, made)


async def gathered(
    stage: Stage,
    upstreams: Mapping[str, Upstream],
    stories: Sequence[Story],
    processes: Callable[[], Processes],
) -> tuple[list[Violation], list[Evidence], Remains]:
    """Collect what the round left, after the end of all faults. The services must still run."""
    await stage.brokers.whole()
    violations = await stage.flowing.check()
    runs = await gather.runs(
        stage.brokers,
        stage.recorders,
        stories,
        lambda: [ran for each in upstreams.values() for ran in each.tool_runs()],
        stage.hooks,
    )
    remains = await gather.remains(stage.brokers, processes, stories)
    if stage.hooks is not None:
        bad = stage.hooks.bad_signatures
        violations += [Violation("signature", "", each) for each in bad]
    return violations, runs, remains


def environment(
    round_: Round,
    folder: Path,
    url: str,
    urls: Mapping[str, str],
    replicas: int,
    more: Mapping[str, object],
    further: Sequence[dict[str, object]] = (),
) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "penstock.yaml"
    agents: list[dict[str, object]] = [*further]
    if "agno" in urls:
        agents.append(
            {"id": "agno", "protocol": "agno", "url": urls["agno"], "agent": "demo-agent"}
        )
    if "adk" in urls:
        common = {"protocol": "adk", "url": urls["adk"]}
        agents.append({"id": "adk", "agent": "demo", **common})
        agents.append({"id": "resumable", "agent": "resumable", "resumable": True, **common})
    agents += [
        {"id": f"agui-{script}", "protocol": "agui", "url": f"{urls['agui']}/{script}"}
        for script in (agui_scripts() if "agui" in urls else ())
    ]
    config.write_text(yaml.safe_dump({"agents": agents}))
    settings = {"config": config, "nats_url": url, "replicas": replicas, **_OPEN, **more}
    settings |= round_.settings
    return {f"PENSTOCK_{name.upper()}": str(value) for name, value in settings.items()}


# The agents that runs use, by agent server. A repeated agent gets more of the runs.
_ASKED: dict[str, tuple[Agent, ...]] = {
    "agno": ("agno", "agno", "agno"),
    "adk": ("adk", "resumable"),
    "agui": ("agui",),
}
# All clients are one user, so the limits per user are off. No check here is about quotas.
_OPEN = {
    "max_open_runs_per_user": 0,
    "max_queued_runs_per_user": 0,
    "max_connections_per_user": 0,
    "max_streams_per_user": 0,
    "max_requests_per_s": 0,
}


async def load(
    round_: Round,
    hurting: asyncio.Task[list[Violation]],
    http: httpx.AsyncClient,
    servers: Sequence[str],
    edges: Sequence[Address],
    approvals: Sequence[Address],
    hold: asyncio.Event | None = None,
) -> tuple[list[Story], list[Violation]]:
    """Start runs at a steady pace until `hurting` is done, and wait for their ends.

    `hold`: some decisions wait for this event, so that their runs stay open.
    """
    stories: list[Story] = []
    living: list[asyncio.Task[None]] = []
    agents = [agent for name in servers for agent in _ASKED[name]]
    for plan in plans(round_.seed, _nonce(), agents, round_.asking):
        if hurting.done() and len(stories) >= round_.runs:
            break
        story = Story(plan, edges, approvals, http)
        if hold is not None and _may_be_held(plan):
            story.decides_after = hold
        stories.append(story)
        living.append(asyncio.create_task(story.live(), name=plan.mark))
        await asyncio.sleep(1 / round_.runs_per_s)
    broken = await hurting
    for task in await _until_still(living, stories, round_.end_timeout_s):
        task.cancel()
    ends = await asyncio.gather(*living, return_exceptions=True)
    broken += [
        Violation("client", plan.mark, repr(end), isinstance(end, NOT_IN_TIME))
        for plan, end in zip((story.plan for story in stories), ends, strict=True)
        if isinstance(end, BaseException)
    ]
    return stories, broken


async def _until_still(
    living: Sequence[asyncio.Task[None]], stories: Sequence[Story], still_s: float
) -> set[asyncio.Task[None]]:
    """Wait until all tasks have ended, or no client has seen a new event for `still_s`.

    Return the tasks that have not ended. On a starved machine events come late, so the wait
    continues as long as events come.
    """
    left = set(living)
    clock = asyncio.get_running_loop().time
    moved_at, before = clock(), -1
    while left and clock() - moved_at < still_s:
        _, left = await asyncio.wait(left, timeout=_LOOK_S)
        stands = sum(len(story.arrivals) for story in stories) - len(left)
        if stands != before:
            moved_at, before = clock(), stands
    return left


def _nonce() -> str:
    """Return digits that no other round on the same servers has, to recognize the round's runs."""
    return str(time.time_ns() // 1_000_000 % 1_000_000_000)


def _may_be_held(plan: Plan) -> bool:
    """Return whether this run may stay open during the whole round.

    A run of a shared session would hold up the runs behind it.
    """
    return plan.decision in ("approve", "reject") and plan.session_id.startswith("s-")


def write_down(folder: Path, runs: Sequence[Evidence], report: Report) -> None:
    """Write a file with all data of each run that has a violation, to help find the cause."""
    for run in runs:
        name = f"{run.plan.mark} {run.run_id}"
        found = [str(each) for each in report.violations if each.run == name]
        if found:
            (folder / f"wrong-{run.plan.mark}.txt").write_text(told(run, found))
