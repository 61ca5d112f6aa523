"""Shared fixtures of the connector's tests: an upstream that misbehaves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.fakes.misbehaving import Misbehaving, misbehaving


@pytest.fixture
async def upstream() -> AsyncIterator[Misbehaving]:
    async with misbehaving() as server:
        yield server
