"""A body that is too large gets 413 on every route and has no effect; the client reads the 413."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Literal

import pytest
import pytest_asyncio

from penstock.web.bodies import MAX_BODY_BYTES
from support.drive.access import ROWS, Row
from support.drive.secured import Secured, bearer, secured
from support.drive.short import in_short
from support.real.nats import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

Told = Literal["length", "chunked"]
PIECE = b"x" * 65536
PIECES = MAX_BODY_BYTES // len(PIECE) + 1
TAKING = [row for row in ROWS if row.method != "GET"]
FORM = "application/x-www-form-urlencoded"
ALL_SCOPES = "start read raw decide automate workflow erase pii act-as administer"


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("bodies"), name="nats of bodies")
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(nats: NatsServer) -> AsyncIterator[Secured]:
    async with secured(nats.url) as running:
        yield running


async def status_of(penstock: Secured, row: Row, path: str, told: Told) -> int:
    """Send the whole body before reading, with `Connection: close`; return the status."""
    headers = {
        **row.how.headers,
        **bearer(scope=ALL_SCOPES),
        "host": "127.0.0.1",
        "content-type": FORM if row.route.startswith("/d/") else "application/json",
        "connection": "close",
    }
    if told == "length":
        headers["content-length"] = str(PIECES * len(PIECE))
    else:
        headers["transfer-encoding"] = "chunked"
    head = f"{row.method} {path} HTTP/1.1\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    port = int(penstock.url.rpartition(":")[2])
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(f"{head}\r\n".encode())
            for _ in range(PIECES):
                chunk = PIECE if told == "length" else b"10000\r\n" + PIECE + b"\r\n"
                writer.write(chunk)
                await writer.drain()
            if told == "chunked":
                writer.write(b"0\r\n\r\n")
                await writer.drain()
            _, status, *_ = (await reader.readline()).split()
            return int(status)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@pytest.mark.parametrize(
    ("row", "told"),
    in_short(
        [(row, told) for told in ("length", "chunked") for row in TAKING],
        [*((row, "length") for row in TAKING), (TAKING[0], "chunked")],
    ),
    ids=str,
)
async def test_a_body_that_is_too_large_is_413(penstock: Secured, row: Row, told: Told) -> None:
    names = await penstock.given(row)
    path = row.route.format(**names) + row.how.query
    assert await status_of(penstock, row, path, told) == 413


async def test_what_is_refused_has_no_effect(penstock: Secured) -> None:
    row = next(row for row in ROWS if row.method == "DELETE" and "{token_id}" in row.route)
    made = await penstock.token(subjects=["*.*"])
    assert await status_of(penstock, row, f"/v1/tokens/{made['id']}", "length") == 413
    listed = await penstock.http.get("/v1/tokens", headers=bearer())
    assert made["id"] in {each["id"] for each in listed.json()["tokens"]}
