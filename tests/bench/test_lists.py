"""Measure the cost of lists with many records, and the delay for other users during lists.

Every record is Alice's, in one session each, so her lists are the longest possible lists. The
services and the broker are processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import httpx
import orjson
import pytest

from penstock.bus import Bus, Message
from penstock.bus.subjects import session_key
from support.drive.bus import connected
from support.drive.figures import report
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET, token
from support.real.cpu import cpu_s
from support.real.nats import NatsServer
from support.real.ports import free_port

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

CONFIG: Final = """\
agents:
  - {id: assistant, protocol: agno, url: "http://127.0.0.1:9", agent: demo}
"""
STORED: Final = [
    int(n) for n in os.environ.get("PENSTOCK_BENCH_STORED", "0,10000,50000").split(",")
]
RARE: Final = 20  # the number of records that belong to another agent and have failed
ASKED: Final = 40  # the number of requests of each list
SECONDS: Final = 4.0  # the time for which another user's requests are measured
LISTERS: Final = 4  # the number of Alice's concurrent requests during that time

NOBODYS: Final = "text=nobody%20says%20this"
TIME: Final = "since=2025-11-22T08:28:00Z&until=2025-11-22T08:30:00Z"  # of 12,000 runs
FILTERED: Final = tuple(
    f"/v1/runs?{query}"
    for query in (
        *("status=failed", "status=queued", "agent=helper", "agent=nobody&status=queued"),
        *("tag=team=rare", "tag=team=nobody", "text=as%20long%20as", NOBODYS, TIME),
        *(f"{more}&{NOBODYS}" for more in ("tenant=acme", "status=completed", "agent=assistant")),
        f"parent_run_id=&{NOBODYS}",  # as the console asks
        *(f"{TIME}&{more}" for more in ("status=failed", "agent=helper", NOBODYS)),
    )
)
EDGE: Final = (
    *("/v1/runs", *FILTERED, "/v1/runs?limit=1000", "/v1/tokens"),
    *("/sessions", "/sessions?sort_by=updated_at&page=100"),
)
APPROVALS: Final = (
    "/v1/approvals",
    "/v1/approvals?status=pending",
    "/v1/approvals?agent=nobody",
    "/v1/approvals?waits_for=me",
)
BESIDE: Final = (*("/v1/runs", "/v1/runs?limit=1000", f"/v1/runs?{NOBODYS}", "/v1/approvals"),)
MOST_TIMES: Final = 12  # a filtered list takes at most so many times as long as one record's read


@dataclass
class Process:
    pid: int
    url: str
    begun_s: float

    @property
    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@asynccontextmanager
async def service(name: str, nats_url: str, folder: Path) -> AsyncIterator[Process]:
    """Run a process of one service."""
    config = folder / "penstock.yaml"
    config.write_text(CONFIG)
    port, probe_port = free_port(), free_port()
    settings = {
        "CONFIG": str(config),
        "NATS_URL": nats_url,
        "PORT": str(port),
        "PROBE_PORT": str(probe_port),
        "DRAIN_S": "0",
        "AUTH_JWT_SECRET": SECRET,
        "AUTH_MAX_REQUESTS_PER_S": "0",
    }
    begun = time.monotonic()
    with (folder / f"{name}.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"penstock_{name}"),
            stdout=output,
            stderr=output,
            env={**os.environ, **{f"PENSTOCK_{key}": value for key, value in settings.items()}},
        )
    try:
        async with httpx.AsyncClient() as http:

            async def ready() -> bool:
                try:
                    answer = await http.get(f"http://127.0.0.1:{probe_port}/readyz")
                except httpx.HTTPError:
                    return False
                return answer.is_success

            await eventually(ready, 20, f"{name} is ready")
        yield Process(process.pid, f"http://127.0.0.1:{port}", time.monotonic() - begun)
    finally:
        process.terminate()
        await process.wait()


def run_id(number: int) -> str:
    """Return a UUIDv7 whose time grows with the number."""
    at_ms = 1_763_800_000_000 + number * 10
    value = at_ms << 80 | 7 << 76 | random.getrandbits(12) << 64 | 2 << 62 | random.getrandbits(62)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def records(count: int) -> Iterable[tuple[str, bytes]]:
    """Yield a run, a session, an approval and a stream token for each number, as (key, value)."""
    at = "2026-11-22T10:00:00.000Z"
    for number in range(count):
        rare = number % max(1, count // RARE) == 0
        agent, session = "helper" if rare else "assistant", f"session-{number}"
        run = run_id(number)
        common = {"run_id": run, "agent": agent, "session_id": session, "user_id": "alice"}
        yield (
            f"runs.{run}",
            orjson.dumps(
                {
                    **common,
                    "status": "failed" if rare else "completed",
                    "message": "Please tell me something that is as long as messages are",
                    "tags": {"team": "rare" if rare else "payments", "env": "test"},
                    "tenant": "acme",
                    "created_at": at,
                    "updated_at": at,
                    "sequence": number,
                    "legs": 1,
                    "first_event": number,
                    "summary": "An answer that has as many words as answers have " * 3,
                }
            ),
        )
        session_record = {"agent": agent, "session_id": session, "thread_id": "t", "runs": [run]}
        key = session_key("alice", agent, session)
        yield f"sessions.{key}", orjson.dumps({**session_record, "user_id": "alice"})
        approval = f"{number:08x}-0000-4000-8000-000000000000"
        item = {
            "item_id": "t1",
            "kind": "confirmation",
            "tool": "delete_file",
            "args": {"path": "/a/path/of/some/length.txt"},
            "description": "Delete the file of this path for ever",
        }
        yield (
            f"approvals.{approval}",
            orjson.dumps(
                {
                    **common,
                    "approval_id": approval,
                    "leg": 1,
                    "status": "pending",
                    "digest": "0" * 64,
                    "items": [item],
                    "requested_at": at,
                    "updated_at": at,
                }
            ),
        )
        token_id = f"{number:032x}"
        # A user has 100 tokens at most, so most tokens are of other users.
        user = "alice" if number < 20 else f"user-{number // 20}"
        yield (
            f"tokens.{token_id}",
            orjson.dumps(
                {
                    "id": token_id,
                    "user_id": user,
                    "name": "a token",
                    "created_at": 1.0,
                    "expires_at": time.time() + 86_400,
                    "digest": token_id * 2,
                }
            ),
        )


async def fill(bus: Bus, count: int) -> str:
    """Store the records, and a run and an approval of Bob, which share the returned id."""
    bobs = run_id(count + 1)
    value: dict[str, Any] = {"run_id": bobs, "agent": "assistant", "session_id": "s"}
    at = "2026-11-22T10:00:00.000Z"
    value |= {"user_id": "bob", "status": "completed", "created_at": at, "updated_at": at}
    await bus.bucket("runs").put(bobs, orjson.dumps(value))
    value |= {"approval_id": bobs, "leg": 1, "digest": "", "items": [], "requested_at": at}
    await bus.bucket("approvals").put(bobs, orjson.dumps(value | {"status": "pending"}))
    batch: list[Message] = []
    for key, payload in records(count):
        batch.append(Message(f"$KV.{key}", payload, {}))
        if len(batch) == 1000:
            await asyncio.gather(*map(bus.publisher.publish, batch))
            batch = []
    await asyncio.gather(*map(bus.publisher.publish, batch))
    return bobs


def cuts(took_s: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile in milliseconds."""
    found = quantiles(took_s, n=100)
    return found[49] * 1000, found[98] * 1000


def client(process: Process, **claims: Any) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {token(**claims)}"}
    return httpx.AsyncClient(base_url=process.url, headers=headers, timeout=60)


async def asks(
    http: httpx.AsyncClient, path: str, seconds: float = 0, most: int = 0
) -> list[float]:
    """Send requests one after another; return the seconds of each.

    There are at least `most` requests, and they last for at least `seconds`.
    """
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) < most or time.perf_counter() < end:
        begun = time.perf_counter()
        answer = await http.get(path)
        took.append(time.perf_counter() - begun)
        assert answer.status_code == 200, answer.text
        if seconds:
            await asyncio.sleep(0.005)
    return took


async def in_turns(
    lister: httpx.AsyncClient, path: str, reader: httpx.AsyncClient, watched: str
) -> tuple[float, float]:
    """Return the medians of a list and of the read of one record, in milliseconds. They are asked
    in turns, so that what else the machine does delays both."""
    lists, reads = [], []
    for _ in range(ASKED):
        lists += await asks(lister, path, most=1)
        reads += await asks(reader, watched, most=1)
    return median(lists) * 1000, median(reads) * 1000


async def measure(process: Process, paths: Iterable[str], watched: str, stored: int) -> None:
    async with client(process, sub="alice") as alice, client(process, sub="bob") as bob:
        first = cuts(await asks(bob, watched, SECONDS))
        report(
            f"another user's {watched[:9]} right after the start, {stored} stored",
            **{"p50 ms": first[0], "p99 ms": first[1]},
        )
        begun = time.monotonic()
        for path in paths:
            # the first list of a bucket waits until the bucket is read
            answer = await alice.get(path)
            while answer.status_code == 503:
                await asyncio.sleep(0.1)
                answer = await alice.get(path)
            assert answer.status_code == 200, answer.text
        first_s = time.monotonic() - begun
        report(
            f"start, {stored} stored",
            **{"ready s": process.begun_s, "then all lists once s": first_s},
            **{"resident MiB": process.resident_mib, "CPU s": cpu_s(process.pid)},
        )
        cpu_ms: dict[str, float] = {}
        for path in paths:
            before = cpu_s(process.pid)
            took = await asks(alice, path, most=ASKED)
            p50, p99 = cuts(took)
            cpu_ms[path] = spent_ms = (cpu_s(process.pid) - before) / len(took) * 1000
            report(f"{path}, {stored} stored", **{"p50 ms": p50, "p99 ms": p99, "CPU ms": spent_ms})
        before = cpu_s(process.pid)
        took = await asks(bob, watched, SECONDS)
        one_ms = (cpu_s(process.pid) - before) / len(took) * 1000
        alone = cuts(took)
        report(
            f"another user's {watched[:9]} alone",
            **{"p50 ms": alone[0], "p99 ms": alone[1], "CPU ms": one_ms},
        )
        # By CPU: in a busy process, what takes long is interrupted more often.
        filtered = [path for path in FILTERED if path in cpu_ms]
        assert {path: cpu_ms[path] for path in filtered if cpu_ms[path] > MOST_TIMES * one_ms} == {}
        for who in filtered and ("alice", "an administrator"):
            scope = {} if who == "alice" else {"scope": "read administer"}
            async with client(process, sub=who, **scope) as http:
                times = {path: await in_turns(http, path, bob, watched) for path in filtered}
            for path, (list_ms, read_ms) in times.items():
                figures = {"p50 ms": list_ms, "one read ms": read_ms, "times": list_ms / read_ms}
                report(f"{path} of {who} by the clock, {stored} stored", **figures)
            assert {path for path, (a, b) in times.items() if a > MOST_TIMES * b} == set()
        for path in BESIDE:
            if path not in paths:
                continue
            listing = [asyncio.create_task(asks(alice, path, SECONDS)) for _ in range(LISTERS)]
            beside = cuts(await asks(bob, watched, SECONDS))
            lists = sum(len(each) for each in await asyncio.gather(*listing))
            report(
                f"another user beside {LISTERS} listers of {path}, {stored} stored",
                **{"p50 ms": beside[0], "p99 ms": beside[1], "lists": lists},
            )
            assert beside[0] < 3 * alone[0]


@pytest.mark.parametrize("stored", STORED)
async def test_lists(fresh_nats: NatsServer, tmp_path: Path, stored: int) -> None:
    async with connected(fresh_nats.url) as bus:
        bobs = await fill(bus, stored)
    async with service("edge", fresh_nats.url, tmp_path) as edge:
        await measure(edge, EDGE, f"/v1/runs/{bobs}", stored)
    async with service("approvals", fresh_nats.url, tmp_path) as approvals:
        await measure(approvals, APPROVALS, f"/v1/approvals/{bobs}", stored)
