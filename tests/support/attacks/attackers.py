"""The attacks, each of which lasts until its process is killed.

`python -m support.attacks.attackers NAME TARGET` makes one attack on the services of TARGET, a JSON
object of the fields of `Target`. While the attack is under way, the program prints again and again
how many answers with which status it got. An attack has a process of its own, with a low priority,
because a real attacker uses other machines.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from support.drive.workflows import counting
from support.fakes.issuer import token

SCOPES = "start read decide automate workflow"
SLOW_CONDITION = "event.data.all(a, event.data.all(b, a == b))"
# Each item takes about 170,000 steps, so that each of them alone is allowed.
SLOW_STEP = {
    "for_each": {"in": "input.items", "limit": 100},
    "set": "size(input.data.filter(x, size(input.data.filter(y, y == x)) > 1))",
    "on_failure": "continue",
}
ITSELF = {
    "for_each": {"in": "[1, 2, 3, 4]"},
    "workflow": {"workflow": "itself", "input": "{}"},
    "on_failure": "continue",
}
BODY_BYTES, SENT_BYTES = 260_000, 250_000
# Rules of a user, and how many runs with 50 events they get: 1,400 deliveries for each run.
SILENT, SILENT_RUNS = 28, 40
# Requests without a user, which each service answers on its port.
OPEN_PATHS = {
    "edge": "/v1/runs",
    "approvals": "/v1/approvals/x/decision",
    "automations": "/v1/hooks/anything",
    "workflows": "/v1/workflows/x/runs",
}


@dataclass(frozen=True)
class Target:
    """The services of one installation, by their URLs, and what the attacks need besides.

    `agent_port` is where the agent `echo` is expected, `receiver` the URL of a receiver that fails
    at the path `/broken`, and `scale` the size of the attack from 0 to 1.
    """

    urls: dict[str, str]
    agent_port: int
    receiver: str
    scale: float


@dataclass
class Attacker:
    """The user `mallory`, or a stranger, and the number of answers by their statuses."""

    target: Target
    http: httpx.AsyncClient
    token: str = ""
    statuses: Counter[str] = field(default_factory=Counter)
    seen: set[int] = field(default_factory=set)
    is_under_way: bool = False

    async def ask(self, service: str, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request as mallory, or with the headers of `request`."""
        headers = request.pop("headers", {"authorization": f"Bearer {self.token}"})
        url = f"{self.target.urls[service]}{path}"
        self.statuses["asked"] += 1
        try:
            answer = await self.http.request(method, url, headers=headers, **request)
        except httpx.TransportError as error:
            self.statuses[type(error).__name__] += 1
            raise
        self.statuses[str(answer.status_code)] += 1
        if answer.is_error and answer.status_code not in self.seen:
            self.seen.add(answer.status_code)
            print(method, url, answer.status_code, answer.text, file=sys.stderr)
        return answer

    async def again_and_again(
        self, at_once: int, act: Callable[[], Awaitable[object]], pause_s: float = 0
    ) -> None:
        """Carry out `act` in a number of loops that never end: the attack is under way."""
        self.is_under_way = True

        async def loop() -> None:
            while True:
                with suppress(httpx.TransportError, OSError):
                    await act()
                await asyncio.sleep(pause_s)

        await asyncio.gather(*(loop() for _ in range(at_once)))

    async def define(self, name: str, step: dict[str, Any]) -> None:
        body = {"dsl": "penstock/1", "name": name, "version": "1", "steps": {"a": step}}
        await self.ask("workflows", "PUT", f"/v1/workflows/{name}/versions/1", json=body)

    async def run(self, message: str) -> httpx.Response:
        body = {"agent": "echo", "message": message}
        return await self.ask("edge", "POST", "/v1/runs", json=body)

    async def run_workflow(self, name: str, **given: Any) -> httpx.Response:
        path = f"/v1/workflows/{name}/runs"
        return await self.ask("workflows", "POST", path, json={"input": given})

    async def rule(self, id: str, url: str, subject: str, **fields: Any) -> None:
        action = {"webhook": {"url": url, "concurrency": 32}}
        body = {"id": id, "subjects": [subject], "action": action, **fields}
        answer = await self.ask("automations", "POST", "/v1/automations", json=body)
        assert answer.status_code == 201, answer.text


async def long_workflows(mallory: Attacker) -> None:
    await mallory.define("long", SLOW_STEP)
    given = {"items": list(range(1000)), "data": list(range(180))}
    await mallory.again_and_again(1, lambda: mallory.run_workflow("long", **given), 2)


async def slow_conditions(mallory: Attacker) -> None:
    hook = {"tokens": ["mallory-hook-token-of-more-than-32-characters"]}
    action = {"webhook": {"url": mallory.target.receiver}}
    rule = {"id": "slow", "hook": hook, "action": action, "where": SLOW_CONDITION}
    await mallory.ask("automations", "POST", "/v1/automations", json=rule)
    headers = {"authorization": f"Bearer {hook['tokens'][0]}"}
    body = [0] * 5000

    async def write_anew() -> None:
        change = {"where": f"{SLOW_CONDITION} || event.data.size() == {time.time_ns()}"}
        await mallory.ask("automations", "PATCH", "/v1/automations/slow", json=change)
        await mallory.ask("automations", "POST", "/v1/automations/slow/resume")

    async def call() -> None:
        await mallory.ask("automations", "POST", "/v1/hooks/slow", json=body, headers=headers)

    await asyncio.gather(
        mallory.again_and_again(16, call), mallory.again_and_again(1, write_anew, 0.2)
    )


async def unfinished_bodies(mallory: Attacker) -> None:
    await _unfinished(
        mallory,
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {BODY_BYTES}\r\n\r\n" + "x" * SENT_BYTES,
    )


async def unfinished_heads(mallory: Attacker) -> None:
    await _unfinished(mallory, "POST {path} HTTP/1.1\r\nhost: localhost\r\nx-filler: " + "x" * 9000)


async def _unfinished(mallory: Attacker, text: str) -> None:
    """Hold many connections whose requests do not go on; open another one for each that ends."""
    services = [name for name, path in OPEN_PATHS.items() if name in mallory.target.urls]
    count = int(1500 * mallory.target.scale)

    async def hold(service: str) -> None:
        await asyncio.sleep(random.random())
        url = httpx.URL(mallory.target.urls[service])
        reader, writer = await asyncio.open_connection(url.host, url.port)
        try:
            writer.write(text.format(path=OPEN_PATHS[service]).encode())
            mallory.statuses["opened"] += 1
            await reader.read()
        finally:
            writer.close()

    await asyncio.gather(
        *(
            mallory.again_and_again(count // len(services), partial(hold, each), 1)
            for each in services
        )
    )


async def failing_receiver(mallory: Attacker) -> None:
    for number in range(4):
        await mallory.rule(f"broken-{number}", f"{mallory.target.receiver}/broken", "llm.stream")
    await mallory.again_and_again(1, lambda: mallory.run("deltas-30"), 1)


async def silent_receivers(mallory: Attacker) -> None:
    """Have more deliveries wait for receivers that never answer than a process has places.

    The runs end, so that a deleted rule leaves no more deliveries than the next attack can bear.
    """

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    for number in range(SILENT):
        server = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await mallory.rule(f"silent-{number}", f"http://127.0.0.1:{port}/", "llm.stream")
    runs = round(SILENT_RUNS * mallory.target.scale)
    await asyncio.gather(*(mallory.run("deltas-50") for _ in range(runs)))
    mallory.is_under_way = True
    await asyncio.Event().wait()


async def many_rules(mallory: Attacker) -> None:
    for number in range(int(100 * mallory.target.scale)):
        where = f"event.data.content.size() == {number + 1000} && event.sequence % 7 == 9"
        url = f"{mallory.target.receiver}/never"
        await mallory.rule(f"rule-{number}", url, "llm.stream", where=where)
    await mallory.again_and_again(1, lambda: mallory.run("deltas-100"), 1)


async def loops(mallory: Attacker) -> None:
    action = {"run": {"agent": "echo", "message": "deltas-9"}}
    body = {"id": "loop", "subjects": ["llm.stream"], "action": action, "loops": True}
    await mallory.ask("automations", "POST", "/v1/automations", json=body)
    await mallory.again_and_again(1, lambda: mallory.run("deltas-9"), 5)


async def trees(mallory: Attacker) -> None:
    await mallory.define("itself", ITSELF)
    await mallory.again_and_again(1, lambda: mallory.run_workflow("itself"), 5)


async def cancelled_trees(mallory: Attacker) -> None:
    await mallory.define("itself", ITSELF)

    async def start_and_cancel() -> None:
        answer = await mallory.run_workflow("itself")
        if answer.status_code == 202:
            await asyncio.sleep(0.5)
            path = f"/v1/runs/{answer.json()['run_id']}/cancel"
            await mallory.ask("edge", "POST", path)

    await mallory.again_and_again(2, start_and_cancel)


async def guesses(mallory: Attacker) -> None:
    """Three strangers try secrets of service tokens, of links, and of hooks: a burst at first."""
    burst = int(100 * mallory.target.scale)

    async def stranger(number: int) -> None:
        transport = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{number + 2}")
        async with httpx.AsyncClient(transport=transport, timeout=30) as http:
            self = Attacker(mallory.target, http, statuses=mallory.statuses)

            async def guess() -> None:
                secret = os.urandom(32).hex()[:43]
                headers = {"authorization": f"Bearer psv_{secret}"}
                await self.ask("approvals", "GET", f"/d/pln_{secret}", headers={})
                await self.ask("approvals", "GET", "/v1/approvals", headers=headers)
                await self.ask("automations", "POST", f"/v1/hooks/{secret}", json={}, headers={})

            async def try_to_guess() -> None:
                with suppress(httpx.TransportError):
                    await guess()

            await asyncio.gather(*(try_to_guess() for _ in range(burst)))
            mallory.is_under_way = True
            await self.again_and_again(4, guess)

    await asyncio.gather(*(stranger(number) for number in range(3)))


async def starts(mallory: Attacker) -> None:
    await mallory.again_and_again(30, lambda: mallory.run("never"))


async def deep_pages(mallory: Attacker) -> None:
    await _read_deep_pages(mallory, [mallory.token])


async def deep_pages_of_a_tenant(mallory: Attacker) -> None:
    """Let each request be of another user of the same tenant."""
    tokens = [token(sub=f"mallory-{n}", scope=SCOPES, org="acme") for n in range(60)]
    await _read_deep_pages(mallory, tokens)


async def _read_deep_pages(mallory: Attacker, tokens: Sequence[str]) -> None:
    turns = itertools.cycle(tokens)

    async def read() -> None:
        headers = {"authorization": f"Bearer {next(turns)}", "accept": "application/json"}
        await mallory.ask("edge", "GET", "/v1/events?subjects=*.*&after=1-0", headers=headers)

    await mallory.again_and_again(60, read)


async def questions(mallory: Attacker) -> None:
    """Start as many workflows that ask for a decision as one user may have open."""
    await mallory.define("asks", {"approve": {"title": '"Do it?"'}})
    await mallory.again_and_again(4, lambda: mallory.run_workflow("asks"))


async def definitions(mallory: Attacker) -> None:
    """Validate a definition of two hundred steps, again and again."""
    steps = {f"s{n}": {"set": f"[{n}].map(a, a + {n}).filter(b, b > {n})"} for n in range(200)}
    body = {"dsl": "penstock/1", "name": "large", "version": "1", "steps": steps}
    await mallory.again_and_again(
        8, lambda: mallory.ask("workflows", "POST", "/v1/workflows/validate", json=body)
    )


async def dry_runs(mallory: Attacker) -> None:
    """Try a slow condition on past events, again and again."""
    await mallory.run("deltas-300")
    where = "event.data.content.matches('(a|b)*c') || event.data.content.size() > 9999"
    url = f"{mallory.target.receiver}/never"
    await mallory.rule("dry", url, "llm.stream", where=where)
    body = {"since": "2020-01-01T00:00:00Z"}
    await mallory.again_and_again(
        16, lambda: mallory.ask("automations", "POST", "/v1/automations/dry/dry-run", json=body)
    )


async def tests_of_rules(mallory: Attacker) -> None:
    """Have samples sent to a receiver that never answers."""
    await mallory.rule("tested", f"{mallory.target.receiver}/silent", "llm.tool_call")
    await mallory.again_and_again(
        50, lambda: mallory.ask("automations", "POST", "/v1/automations/tested/test")
    )


async def slow_readers(mallory: Attacker) -> None:
    """Open as many streams of a large run as one user may have, and read none."""
    run_id = (await mallory.run("deltas-5000")).json()["run_id"]
    url = httpx.URL(mallory.target.urls["edge"])
    head = f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer "

    async def stay() -> None:
        _, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
        try:
            writer.write(f"{head}{mallory.token}\r\n\r\n".encode())
            mallory.statuses["opened"] += 1
            await asyncio.sleep(10)
        finally:
            writer.close()

    await mallory.again_and_again(90, stay)


ATTACKS: dict[str, Callable[[Attacker], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        long_workflows,
        slow_conditions,
        unfinished_bodies,
        unfinished_heads,
        failing_receiver,
        silent_receivers,
        many_rules,
        loops,
        trees,
        cancelled_trees,
        guesses,
        starts,
        deep_pages,
        deep_pages_of_a_tenant,
        slow_readers,
        questions,
        definitions,
        dry_runs,
        tests_of_rules,
    )
}


async def main(name: str, target: Target) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limits = httpx.Limits(max_connections=None)
    async with counting(target.agent_port), httpx.AsyncClient(timeout=60, limits=limits) as http:
        mallory = Attacker(target, http, token(sub=name, scope=SCOPES))
        attack = asyncio.ensure_future(ATTACKS[name](mallory))
        while not attack.done():
            if mallory.is_under_way and mallory.statuses:
                print(json.dumps(mallory.statuses), flush=True)
            await asyncio.wait({attack}, timeout=0.2)
        await attack


if __name__ == "__main__":
    os.nice(10)
    asyncio.run(main(sys.argv[1], Target(**json.loads(sys.argv[2]))))
