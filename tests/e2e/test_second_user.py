"""A user does not wait for long for anything while another user, or strangers, attack.

The limit is a second, or a multiple of what the slowest thing takes without an attack: so a short
attack on a busy machine shows only long delays. What it takes without one is measured when nothing
is left of earlier attacks.
The services are separate processes, or `penstock up`. The attacks are in `support.attacks`.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
import pytest_asyncio
import yaml
from nats.aio.client import Client

from penstock.bus import streams
from penstock.bus.admin.permissions import OPERATOR, SUBSCRIBER
from penstock_cli.local import embedded_nats
from support.attacks.attackers import ATTACKS, Target
from support.attacks.second_user import SecondUser, bearer, p99
from support.drive.waiting import eventually
from support.drive.workflows import counting
from support.fakes.issuer import SECRET
from support.fakes.receiver import answers, hangs, receiver
from support.real.deployment import deployment
from support.real.forked import Forked
from support.real.nats import NatsServer
from support.real.ports import free_port
from support.real.up import Up

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITH_API = ("edge", "approvals", "automations", "workflows")
MOST_S = 1.0
# On a machine that has no time, everything takes longer also without an attack. There, nothing may
# take longer than so many times what the slowest thing takes without one.
TIMES = 8
# However slow the machine is, who waits so long is delayed by the attack.
WORST_S = 10.0
# A busy machine delays something once; an attack that delays others does so each time.
TRIES = 3
# The streams whose consumers have work while something of an attack is left, and the seconds after
# which nothing may be left: the jobs of deleted rules fail 100 in a second.
WORK = (streams.RAW, streams.COMMANDS, streams.EVENTS, streams.DELIVERIES, streams.SCHEDULES)
LEFT_S = 200.0
SETTINGS = {
    "auth_jwt_secret": SECRET,
    "auth_tenant_claim": "org",
    "webhook_allow_hosts": "127.0.0.1",
    "log_level": "error",
    "max_runs_per_root": "200",
}


@dataclass
class Site:
    """An installation with a second user, and what its attackers need."""

    urls: dict[str, str]
    agent_port: int
    user: SecondUser
    folder: Path
    nats: Client
    alone_s: float = 0.0  # how long the slowest thing took without an attack

    async def measure_alone(self) -> None:
        await eventually(self._is_idle, LEFT_S, "the end of what earlier attacks have left")
        waits_s = await self.user.act(1)
        self.alone_s = max(self.alone_s, *map(p99, waits_s.values()))

    async def _is_idle(self) -> bool:
        jetstream = self.nats.jetstream()
        for stream in WORK:
            for each in await jetstream.consumers_info(stream):
                waiting = (each.num_pending or 0) + (each.num_ack_pending or 0)
                if waiting and each.name != SUBSCRIBER:  # nobody takes this consumer's messages
                    return False
        for service in ("automations", "automations-events"):
            pattern = f"schedule.{service}.>"
            if (await jetstream.stream_info(streams.SCHEDULES, pattern)).state.subjects:
                return False
        return True

    @asynccontextmanager
    async def attacked(self, name: str, scale: float) -> AsyncIterator[Counter[str]]:
        """Make the attack; in the end, the counter has the statuses of the attacker's answers."""
        target = Target(self.urls, self.agent_port, self.user.receiver.url(""), scale)
        log, errors = self.folder / f"{name}.log", self.folder / f"{name}.errors"
        log.write_text("")
        program = ["-m", "support.attacks.attackers", name, json.dumps(asdict(target))]
        process = Forked(program, {}, log, errors)
        statuses: Counter[str] = Counter()

        async def is_under_way() -> bool:
            assert process.returncode is None, errors.read_text()
            return bool(log.read_text())

        try:
            await eventually(is_under_way, 100, f"the attack {name}")
            yield statuses
            assert process.returncode is None, errors.read_text()
            statuses.update(json.loads(log.read_text().splitlines()[-1]))
        finally:
            process.kill()
            await process.ended()
            await self._end_all_of(bearer(name, "start read automate"))

    async def _end_all_of(self, attacker: dict[str, str]) -> None:
        """Delete the attacker's rules and cancel the attacker's runs, so that the attack ends."""
        http, rules = self.user.http, f"{self.urls['automations']}/v1/automations"
        made = (await http.get(f"{rules}?limit=200", headers=attacker)).json()["automations"]
        deletes = (http.delete(f"{rules}/{each['id']}", headers=attacker) for each in made)
        await asyncio.gather(*deletes)
        runs = f"{self.urls['edge']}/v1/runs"
        found = (await http.get(f"{runs}?status=running&limit=200", headers=attacker)).json()
        roots = [each["run_id"] for each in found["runs"] if not each.get("parent_run_id")]
        cancels = (http.post(f"{runs}/{each}/cancel", headers=attacker) for each in roots)
        await asyncio.gather(*cancels)


# the URLs of the services, the URL of NATS, and the login there
Installed = tuple[dict[str, str], str, dict[str, str]]


@asynccontextmanager
async def separate(nats_url: str, folder: Path, agents: list[Any]) -> AsyncIterator[Installed]:
    """Run each service as a process; yield the URLs of those with an API, and of NATS."""
    counts = dict.fromkeys((*WITH_API, "connector", "normalizer"), 1)
    async with deployment(nats_url, folder / "penstock", agents, counts, **SETTINGS) as running:
        yield {name: running.of(name)[0].url for name in WITH_API}, nats_url, {}


@asynccontextmanager
async def up(nats_url: str, folder: Path, agents: list[Any]) -> AsyncIterator[Installed]:
    """Run `penstock up` with a NATS server of its own; yield what `separate` yields."""
    config = folder / "penstock.yaml"
    config.write_text(yaml.safe_dump({"agents": agents}))
    made = Up(folder, "--config", str(config))
    variables = {f"PENSTOCK_{name.upper()}": value for name, value in SETTINGS.items()}
    await asyncio.to_thread(made.start, **variables)
    url = embedded_nats.running(made.data)
    assert url is not None
    password = (embedded_nats.credentials(made.data) / OPERATOR).read_text().strip()
    try:
        yield dict.fromkeys(WITH_API, made.url), url, {"user": OPERATOR, "password": password}
    finally:
        await asyncio.to_thread(made.signal, signal.SIGKILL)


INSTALLATIONS = {"separate": separate, "up": up}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sites(
    nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callable[[str], Awaitable[Site]]]:
    """Yield a function that returns the site of an installation, which it starts at the first call.

    An installation ends when another one is wanted.
    """
    now: dict[str, Site] = {}
    async with AsyncExitStack() as stack:

        async def of(how: str) -> Site:
            if how not in now:
                now.clear()
                await stack.aclose()
                folder = tmp_path_factory.mktemp(how)
                now[how] = await stack.enter_async_context(installed(how, nats_server.url, folder))
            return now[how]

        yield of


@asynccontextmanager
async def installed(how: str, nats_url: str, folder: Path) -> AsyncIterator[Site]:
    agent_port = free_port()
    async with (
        counting() as worker,
        receiver() as got,
        httpx.AsyncClient(timeout=60) as http,
        INSTALLATIONS[how](
            nats_url,
            folder,
            [
                {"id": "worker", "protocol": "agui", "url": f"{worker.upstream.url}/agui"},
                {"id": "echo", "protocol": "agui", "url": f"http://127.0.0.1:{agent_port}/agui"},
            ],
        ) as (urls, own_nats_url, login),
    ):
        got.usual |= {"/broken": answers(500), "/silent": hangs()}
        user = SecondUser(urls, got, http)
        await user.prepare()
        client = await nats.connect(own_nats_url, **login)
        made = Site(urls, agent_port, user, folder, client)
        await user.act(0)  # the first of everything takes longer
        await made.measure_alone()
        try:
            yield made
        finally:
            await client.close()


# `make test` makes some attacks for a short time on separate services; `make faults` makes all of
# them, also on `penstock up`. Long workflows, slow conditions, many rules, receivers that fail or
# are silent, and unfinished bodies have tests of their own with a second user, in the folders of
# workflows and automations.
SHORT = [
    pytest.param(how, name, 0.3, 1.0, id=f"{name}-{how}-short")
    for how, names in {
        "separate": ("starts", "slow_readers"),
    }.items()
    for name in names
]
LONG = [
    pytest.param(how, name, 1.0, 20.0, id=f"{name}-{how}", marks=pytest.mark.chaos)
    for how in INSTALLATIONS
    for name in ATTACKS
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("how", "name", "scale", "seconds"), [*SHORT, *LONG])
async def test_an_attack_keeps_no_second_user_waiting(
    sites: Callable[[str], Awaitable[Site]], how: str, name: str, scale: float, seconds: float
) -> None:
    site = await sites(how)
    for _ in range(TRIES):
        async with site.attacked(name, scale) as statuses:
            waits_s = await site.user.act(seconds)
        assert statuses, "the attacker has done nothing"
        assert "500" not in statuses
        beside_s = {what: round(p99(each), 3) for what, each in waits_s.items()}
        print(f"alone {site.alone_s:.3f} s, beside {beside_s}, the attacker got {dict(statuses)}")
        most_s = min(max(MOST_S, TIMES * site.alone_s), WORST_S)
        slow = {what: each for what, each in beside_s.items() if each > most_s}
        if not slow:
            return
        await site.measure_alone()
    alone = f"alone, the slowest took {site.alone_s:.3f} s"
    pytest.fail(f"each of {TRIES} attacks delays {slow}; {alone}")
