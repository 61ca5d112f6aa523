"""One user's deliveries do not delay another user's: places, breakers, rates and hosts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from support.drive.automations import rule, user, without_service
from support.fakes.receiver import OK, Received, answers
from support.real.automating import automations_process
from support.real.nats import NatsServer

SILENT, CALLS = 28, 40
# Before there were shares it was 68 s. (e2e/test_second_user.py measures whether it is below 1 s.)
SLOWEST_S = 20.0


@asynccontextmanager
async def silent_servers(count: int) -> AsyncIterator[list[str]]:
    """Run servers that take connections and never answer; yield their URLs."""
    over = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    servers = [await asyncio.start_server(stay_silent, "127.0.0.1", 0) for _ in range(count)]
    try:
        yield [f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}/" for each in servers]
    finally:
        over.set()
        for server in servers:
            server.close()
            await server.wait_closed()


async def test_silent_receivers_of_one_user_do_not_delay_another(
    fresh_nats: NatsServer, record_property: Callable[[str, object], None]
) -> None:
    async with without_service(fresh_nats.url) as made, silent_servers(SILENT) as urls:
        for number, url in enumerate(urls):
            silent = rule(f"silent-{number}", url, "llm.tool_call", webhook={"concurrency": 32})
            await made.store.apply(silent, user("u1"))
        await made.store.apply(rule("good", made.receiver.url(), "llm.tool_call"), user("u2"))
        async with automations_process(fresh_nats.url):
            attack, other = await made.run("u1"), await made.run("u2")
            await attack.open()
            await other.open()
            waits_s = []
            for number in range(CALLS):
                await attack.tool(number)
                if number % 2:
                    begun = time.monotonic()
                    await other.tool(number)
                    await made.receiver.count(number // 2 + 1, timeout_s=120)
                    waits_s.append(time.monotonic() - begun)
        record_property("latencies_s", [round(each, 3) for each in waits_s])
        assert max(waits_s) < SLOWEST_S, waits_s


async def test_a_failing_rule_stops_no_other_rule_at_the_same_host(fresh_nats: NatsServer) -> None:
    async with without_service(fresh_nats.url) as made:
        made.receiver.usual["/broken"] = answers(500)
        broken, good = made.receiver.url("/broken"), made.receiver.url("/good")
        await made.store.apply(rule("broken", broken, "llm.tool_call"), user("u1"))
        await made.store.apply(rule("good", good, "llm.tool_call"), user("u2"))
        async with automations_process(fresh_nats.url, retry_delays_s=[]):
            attack, other = await made.run("u1"), await made.run("u2")
            await attack.open()
            await other.open()
            for number in range(8):
                await attack.tool(number)
            while len(made.receiver.got("/broken")) < 5:  # opens the breaker
                await asyncio.sleep(0.05)
            await other.tool(0)
            [outcome] = await made.outcomes(other.run_id, 1, 20)
        assert outcome.type == "automation.completed"


async def test_no_rule_lifts_the_rate_of_another_rule(fresh_nats: NatsServer) -> None:
    async with without_service(fresh_nats.url) as made:
        limited = rule(
            "limited", made.receiver.url("/limited"), "llm.tool_call", webhook={"rate_per_s": 2}
        )
        free = rule(
            "free", made.receiver.url("/free"), "llm.tool_call", webhook={"concurrency": 32}
        )
        await made.store.apply(limited, user("u1"))
        await made.store.apply(free, user("u1"))
        async with automations_process(fresh_nats.url):
            run = await made.run("u1")
            await run.open()
            begun = time.monotonic()
            for number in range(30):
                await run.tool(number)
            while len(made.receiver.got("/free")) < 30:
                await asyncio.sleep(0.05)
            took_s = time.monotonic() - begun
            sent = len(made.receiver.got("/limited"))
        assert sent <= 2 * took_s + 3


class Busy:
    """Counts the requests that a path has under way, and answers each late."""

    def __init__(self) -> None:
        self.now, self.most = 0, 0

    async def __call__(self, writer: asyncio.StreamWriter, received: Received) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.2)
        self.now -= 1
        await OK(writer, received)


async def test_each_rule_has_its_own_concurrency_and_none_loosens_the_cap_of_the_host(
    fresh_nats: NatsServer,
) -> None:
    async with without_service(fresh_nats.url) as made:
        whole, careful = Busy(), Busy()

        async def both(writer: asyncio.StreamWriter, received: Received) -> None:
            whole.now += 1
            whole.most = max(whole.most, whole.now)
            await careful(writer, received)
            whole.now -= 1

        made.receiver.usual |= {"/careful": both, "/greedy": whole}
        for name, most in (("careful", 1), ("greedy", 32)):
            url, webhook = made.receiver.url(f"/{name}"), {"concurrency": most}
            await made.store.apply(rule(name, url, "llm.tool_call", webhook=webhook), user("u1"))
        async with automations_process(fresh_nats.url, webhook_requests_per_host=8):
            run = await made.run("u1")
            await run.open()
            for number in range(20):
                await run.tool(number)
            await made.receiver.count(20, "/greedy", 60)
            await made.receiver.count(20, "/careful", 60)
        assert careful.most == 1, "the rule that came last does not set the limit of the other"
        assert whole.most == 4, "one user gets half of the eight requests"


@pytest.mark.chaos
async def test_a_thousand_rules_of_one_user_do_not_delay_another(
    fresh_nats: NatsServer, record_property: Callable[[str, object], None]
) -> None:
    """Ten of the rules match each event; the others are found by their text, or looked at."""
    conditions = (
        None,
        'event.data.tool == "none"',
        "event.data.args.n > 5",
        'event.data.tool != "get_weather"',
    )
    async with without_service(fresh_nats.url) as made, silent_servers(1) as [silent]:
        for number in range(1000):
            where = None if number % 100 == 0 else conditions[number % 3 + 1]
            each = rule(f"r{number}", silent, "llm.tool_call", where=where)
            await made.store.apply(each, user("u1"))
        await made.store.apply(rule("good", made.receiver.url(), "llm.tool_call"), user("u2"))
        async with automations_process(fresh_nats.url):
            attack, other = await made.run("u1"), await made.run("u2")
            await attack.open()
            await other.open()
            waits_s = []
            for number in range(CALLS // 2):
                for step in range(5):
                    await attack.tool(5 * number + step, n=1)
                begun = time.monotonic()
                await other.tool(number)
                await made.receiver.count(number + 1, timeout_s=120)
                waits_s.append(time.monotonic() - begun)
        record_property("latencies_s", [round(each, 3) for each in waits_s])
        assert max(waits_s) < SLOWEST_S, waits_s
