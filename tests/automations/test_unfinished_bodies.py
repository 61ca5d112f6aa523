"""Unknown callers leave bodies unfinished; the process stays small, and others are served."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from penstock.web.server import raise_file_limit
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import Owner
from penstock_automations.rules.secrets import new_secret
from penstock_automations.rules.store import RuleStore
from support.drive.bus import connected
from support.fakes.issuer import SECRET
from support.real.automating import automations_process
from support.real.nats import NatsServer
from support.real.ports import free_port
from support.real.processes import peak_rss_bytes, rss_bytes

CONNECTIONS, SENT_BYTES, MIB = 1500, 250 * 1024, 1024 * 1024
WIRE = (
    "POST /v1/hooks/{id} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    "content-length: 260000\r\n\r\n"
)
HOOK_SECRET = new_secret()


async def _attack(port: int, number: int, stack: AsyncExitStack) -> None:
    """Open a connection to a hook, and send most of a body, as fast as the server takes it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)
    id = "orders" if number % 3 else "anything"
    with suppress(OSError, TimeoutError):
        writer.write(WIRE.format(id=id).encode() + b"x" * SENT_BYTES)
        async with asyncio.timeout(20):
            await writer.drain()


def _latencies(url: str, over: threading.Event) -> list[float]:
    """Call the hook of the second user until the attack is over; return the seconds of each."""
    found: list[float] = []
    with httpx.Client(timeout=60) as http:
        while not over.is_set() or len(found) < 200:
            at, body, id = datetime.now(UTC), b'{"order": 7}', f"m{len(found)}"
            headers = {
                "content-type": "application/json",
                "webhook-id": id,
                "webhook-timestamp": str(int(at.timestamp())),
                "webhook-signature": Webhook(HOOK_SECRET).sign(id, at, body.decode()),
            }
            begun = time.monotonic()
            answer = http.post(f"{url}/v1/hooks/orders", content=body, headers=headers)
            found.append(time.monotonic() - begun)
            assert answer.status_code == 202, answer.text
            time.sleep(0.01)
    return found


@pytest.mark.timeout(180)
async def test_1500_unfinished_bodies_take_no_more_memory_than_the_settings_say(
    fresh_nats: NatsServer,
) -> None:
    raise_file_limit()
    port = free_port()
    async with connected(fresh_nats.url) as bus:
        action = {"webhook": {"url": "http://127.0.0.1:9/", "secrets": [HOOK_SECRET]}}
        hook = {"secrets": [HOOK_SECRET], "rate_per_s": 1000}
        fields = {"id": "orders", "hook": hook, "action": action}
        await RuleStore(bus).apply(read_rule(fields, Rule), Owner(user_id="u2"))
        async with automations_process(
            fresh_nats.url, port=port, auth_jwt_secret=SECRET, log_level="error"
        ) as service:
            pid, over = service.process.pid, threading.Event()
            calling = asyncio.create_task(
                asyncio.to_thread(_latencies, f"http://127.0.0.1:{port}", over)
            )
            await asyncio.sleep(0.5)
            before = rss_bytes(pid)
            async with AsyncExitStack() as stack:
                for first in range(0, CONNECTIONS, 100):
                    numbers = range(first, first + 100)
                    await asyncio.gather(*(_attack(port, each, stack) for each in numbers))
                over.set()
                latencies = sorted(await calling)
                grown = (peak_rss_bytes(pid) - before) / MIB
    p99 = latencies[int(len(latencies) * 0.99) - 1]
    print(f"grew by {grown:.0f} MiB; p99 {p99:.3f} s of {len(latencies)}")
    # 32 MiB of one address, and about 60 KiB for each connection
    assert grown < 200
    assert p99 < 1
