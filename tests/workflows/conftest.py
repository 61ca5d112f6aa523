"""A server of agents for the tests of workflows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.drive.workflows import CountingServer, counting


@pytest.fixture
async def server() -> AsyncIterator[CountingServer]:
    async with counting() as made:
        yield made
