"""A subscriber that is killed with SIGKILL loses no event, and keeps the order of each run."""

from __future__ import annotations

import asyncio
import os
import sys

from penstock.bus.admin.subscribers import Durable

from .conftest import System, event

PROGRAM = """
import asyncio, os, sys
from penstock.events.llm import ToolCall
from penstock.subscribe import Nats, Received, Subscriber

subscriber = Subscriber("quick", Nats(os.environ["NATS_URL"], domain=None))

@subscriber.on()
async def take(received: Received[ToolCall]) -> None:
    print(received.event.sequence, received.delivered, flush=True)
    if sys.argv[1:] == ["hang"] and received.event.sequence == 2:
        await asyncio.Event().wait()

asyncio.run(subscriber.run())
"""


async def lines(system: System, count: int, *arguments: str) -> list[str]:
    """Run the program, and kill it when it has printed this many lines."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *arguments),
        env=os.environ | {"NATS_URL": system.server.url},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            return [(await process.stdout.readline()).decode().strip() for _ in range(count)]
    finally:
        process.kill()
        await process.wait()


async def test_the_event_that_was_being_handled_comes_again_and_the_later_ones_come(
    system: System, run_id: str
) -> None:
    await system.bus.api(
        "CONSUMER.DURABLE.CREATE.EVENTS.quick",
        {
            "stream_name": "EVENTS",
            "config": {**Durable("quick").config(), "ack_wait": 1_000_000_000},
        },
    )
    await system.publish(*(event(run_id, number) for number in (1, 2, 3, 4)))
    assert await lines(system, 2, "hang") == ["1 1", "2 1"]
    # wait for the event's ack_wait, and until the last request of the killed process has ended
    await asyncio.sleep(2)
    again = await lines(system, 3)
    assert {line.partition(" ")[0] for line in again} == {"2", "3", "4"}
    assert "2 2" in again or "2 3" in again
