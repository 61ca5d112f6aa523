"""While processes are killed, each time of a schedule and each hook request acts once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import orjson
import pytest

from penstock.bus import streams, subjects
from penstock.bus.read import direct
from penstock.bus.records.runs import StartCommand
from penstock.bus.write.objects import unwrap
from penstock.settings import Config
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import Owner
from penstock_automations.rules.secrets import new_token
from penstock_automations.rules.store import RuleStore
from support.drive.automations import Automations
from support.drive.pipeline import pipeline
from support.drive.short import in_short
from support.drive.waiting import eventually
from support.fakes.receiver import SECRET, receiver
from support.real.automating import automations_process
from support.real.nats import NatsServer
from support.real.ports import free_port

TOKEN = new_token()
OWNER = Owner(user_id="u1", scopes=["start", "automate"])
AGENTS = "agents: [{id: assistant, protocol: agno, url: 'http://127.0.0.1:9', agent: demo}]"
RUN = {"run": {"agent": "assistant", "message": "{{ event.type }}"}}


@asynccontextmanager
async def without_service(url: str) -> AsyncIterator[Automations]:
    """Run a receiver. The test starts the service's processes itself."""
    async with receiver() as made, pipeline(url, Config(agents=[]), ()) as base:
        yield Automations(base, made, RuleStore(base.bus))
        assert made.bad_signatures == []


async def started(made: Automations, rule_id: str) -> list[StartCommand]:
    """The starts that the rule has asked for."""
    pattern = subjects.command("connector", "start", "*")
    found = [
        StartCommand.model_validate_json(await unwrap(made.bus, stored.payload))
        async for stored in direct.replay(made.bus, streams.COMMANDS, pattern)
    ]
    return [each for each in found if (each.idempotency_key or "").startswith(f"{rule_id}.")]


async def all_done(made: Automations) -> bool:
    return await made.bus.tail(streams.DELIVERIES, "delivery.>") is None


# The scheduled message, the job, the next time, the plan of the run, the run's record, the start,
# the delivery's record, and what is said on the run's timeline. The order varies.
@pytest.mark.parametrize("write", in_short(range(1, 8), [6]))
async def test_a_kill_at_any_write_starts_one_run_for_a_time(
    fresh_nats: NatsServer, tmp_path: Path, write: int
) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text(AGENTS)
    async with without_service(fresh_nats.url) as made:
        missed = (datetime.now(UTC) - timedelta(minutes=2)).replace(second=0, microsecond=0)
        cron = f"{missed.minute} {missed.hour} * * *"
        rule = read_rule({"id": "timed", "schedule": {"cron": cron}, "action": RUN}, Rule)
        await made.store.apply(rule, OWNER)
        found = await made.store.get("timed")
        assert found is not None
        since = found.record.since - 3600
        await made.store.put(found.record.model_copy(update={"since": since}), found.revision)
        with contextlib.suppress(RuntimeError):  # the process may be killed before it is ready
            async with automations_process(
                fresh_nats.url, dies_before=write, config=str(config)
            ) as victim:
                assert await victim.process.ended() == -signal.SIGKILL
        async with automations_process(fresh_nats.url, config=str(config)) as other:
            await eventually(lambda: started(made, "timed"), 30, what="the start")

            async def recorded() -> bool:
                key = f"timed.schedule-{missed:%Y%m%dT%H%M00Z}"
                entry = await made.bus.bucket("deliveries").get(key)
                return entry is not None and b'"delivered"' in entry.value

            await eventually(recorded, 30, what="the delivery's outcome")
            await eventually(lambda: all_done(made), 30, what="that no job is left")
            assert await other.stop() == 0
        [command] = await started(made, "timed")
        assert command.message == "schedule.fired"
        assert len(await made.bus.bucket("runs").keys(">")) == 1


async def sent(port: int, number: int) -> str:
    """Send a request until it is accepted, as callers of webhooks do; return the delivery's id."""
    headers = {"authorization": f"Bearer {TOKEN}", "idempotency-key": f"order-{number}"}
    url = f"http://127.0.0.1:{port}/v1/hooks/orders"
    async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = await http.post(url, json={"number": number}, headers=headers)
                if answer.status_code == 202:
                    return str(answer.json()["delivery_id"])
            await asyncio.sleep(0.1)


async def storm(nats_url: str, requests: int, kills: int) -> None:
    luck = random.Random(5)
    async with without_service(nats_url) as made:
        webhook = {"url": made.receiver.url(), "secrets": [SECRET], "concurrency": 32}
        hook = {"tokens": [TOKEN], "rate_per_s": 1000}
        rule = read_rule({"id": "orders", "hook": hook, "action": {"webhook": webhook}}, Rule)
        await made.store.apply(rule, OWNER)
        port = free_port()
        sending = [asyncio.create_task(sent(port, number)) for number in range(requests)]
        for number in range(kills + 1):
            async with automations_process(nats_url, port=port) as process:
                if number < kills:
                    await asyncio.sleep(luck.random() * 0.5)
                    await process.kill()
                    continue
                ids = await asyncio.wait_for(asyncio.gather(*sending), 120)
                await eventually(lambda: all_done(made), 60, what="that no job is left")
        assert len(set(ids)) == requests, "one delivery for each request"
        counts = Counter(each.id for each in made.receiver.requests)
        assert counts.keys() == set(ids)
        for id in ids:
            entry = await made.bus.bucket("deliveries").get(id)
            assert entry is not None
            record = orjson.loads(entry.value)
            assert (record["status"], record["made"]) == ("delivered", 1)
        numbers = Counter(each.json["data"]["data"]["number"] for each in made.receiver.requests)
        assert numbers.keys() == set(range(requests))


async def test_each_request_to_a_hook_is_one_delivery_over_kills(fresh_nats: NatsServer) -> None:
    await storm(fresh_nats.url, requests=40, kills=2)


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_a_thousand_requests_to_a_hook_over_ten_kills(fresh_nats: NatsServer) -> None:
    await storm(fresh_nats.url, requests=1000, kills=10)
