"""Provide a guarded server with any settings, and an issuer whose keys the server reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support.fakes.guarded_server import Guarded
from support.fakes.issuer import SECRET, JwksServer, Key

MakeGuarded = Callable[..., Awaitable[Guarded]]


@pytest.fixture(scope="module", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("ALLOW_UNAUTHENTICATED_SSE", raising=False)
        yield


@pytest.fixture
async def make_guarded() -> AsyncIterator[MakeGuarded]:
    """Return a function that starts a server of the test's own with these AuthSettings."""
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Guarded:
            guarded = Guarded(**settings)
            await guarded.start(stack)
            return guarded

        yield make


@pytest.fixture(scope="module")
async def _shared() -> AsyncIterator[Guarded]:
    async with AsyncExitStack() as stack:
        guarded = Guarded(jwt_secret=SECRET)
        await guarded.start(stack)
        yield guarded


@pytest.fixture
def guarded(_shared: Guarded) -> Guarded:
    """Return the module's server, reset; it takes HS256 tokens that are signed with SECRET."""
    _shared.forget_all()
    return _shared


@pytest.fixture
async def issuer() -> AsyncIterator[JwksServer]:
    server = JwksServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="session")
def rsa_key() -> Key:
    return Key("rsa-1")


@pytest.fixture(scope="session")
def other_key() -> Key:
    """Return a key that the issuer has not published, or not yet."""
    return Key("rsa-2")
