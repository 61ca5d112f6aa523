"""Fixtures: a bus on the worker's shared nats-server, and a bus on a server of one test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.bus import Bus
from support.drive.bus import connected, new_run_id
from support.real.nats import NatsServer


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with connected(nats_server.url) as bus:
        yield bus


@pytest.fixture
async def own_bus(fresh_nats: NatsServer) -> AsyncIterator[Bus]:
    """Connect to a server that the test may stop; a publish fails after two seconds."""
    async with connected(fresh_nats.url, publish_timeout_s=2) as bus:
        yield bus


@pytest.fixture
def run_id() -> str:
    return new_run_id()
