"""A garbage cursor is refused, a garbage WebSocket is closed, and other clients do not notice."""

from __future__ import annotations

import asyncio
import base64
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect

from fuzz.cases import how_many
from penstock_edge.views.cursor import Cursor
from support.drive.clients import Client
from support.fakes.pretend import PretendRun

_ALPHABET = "0123456789-- +.eEx\u0660\u00b2\t%/\\\"'<>"


def garbage(rng: random.Random) -> str:
    """Return random text of characters that may resemble a cursor."""
    length = rng.choice((1, 3, 8, 40, 3000))
    return "".join(rng.choice(_ALPHABET) for _ in range(length))


@given(st.text() | st.from_regex(r"[0-9]{0,20}-[0-9]{0,11}"))
def test_a_cursor_is_read_as_it_was_written_or_refused(text: str) -> None:
    if _is_cursor(text):
        cursor = Cursor.parse(text)
        assert Cursor.parse(str(cursor)) == cursor
        assert cursor.sequence < 2**63


async def cursors_are_refused(edge: Client, run: PretendRun, seed: str, count: int) -> None:
    rng = random.Random(seed)
    paths = (
        f"/v1/runs/{run.run_id}/events",
        "/v1/events",
        f"/v1/sessions/{run.session_id}/events?agent=assistant",
        f"/api/v1/agent/runs/{run.session_id}/events?until=idle",
    )
    for _ in range(count):
        path, cursor = rng.choice(paths), garbage(rng)
        header = cursor.encode("utf-8", "replace")
        async with asyncio.timeout(20):
            # A cursor that happens to be valid may open a stream, so only the response's head is
            # read.
            async with edge.stream("GET", path, headers={b"last-event-id": header}) as answer:
                status = answer.status_code
        nothing_wrong = _is_cursor(cursor) or not cursor.strip()
        valid = status in (200, 204) and nothing_wrong
        assert valid or status in (400, 404, 410, 431), f"{status} for {path} and {cursor[:80]!r}"


def _is_cursor(text: str) -> bool:
    try:
        Cursor.parse(text)
    except ValueError:
        return False
    return True


async def test_no_garbage_for_a_cursor_is_an_error_of_ours(
    edge: Client, finished: PretendRun
) -> None:
    await cursors_are_refused(edge, finished, "penstock", 40)


@pytest.mark.chaos
async def test_chaos_no_garbage_for_a_cursor_is_an_error_of_ours(
    edge: Client, finished: PretendRun
) -> None:
    await cursors_are_refused(edge, finished, str(random.random()), how_many(0.01))


async def websocket_garbage(edge: Client, session_id: str, body: bytes) -> None:
    """Send a valid handshake and these bytes; wait until the server closes the connection."""
    host, port = edge.base_url.host, edge.base_url.port
    reader, writer = await asyncio.open_connection(host, port)
    key = base64.b64encode(random.Random(0).randbytes(16)).decode()
    writer.write(
        f"GET /v1/sessions/{session_id}/events/ws?agent=assistant HTTP/1.1\r\nhost: {host}\r\n"
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        f"sec-websocket-key: {key}\r\n\r\n".encode()
    )
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    assert head.startswith(b"HTTP/1.1 101")
    writer.write(body)
    writer.write_eof()
    while await asyncio.wait_for(reader.read(65536), 30):
        pass
    writer.close()


async def test_no_bytes_on_a_websocket_harm_the_others(edge: Client, run: PretendRun) -> None:
    session_id = str(uuid.uuid4())
    waiting = PretendRun(run.bus, session_id=session_id)
    await waiting.join()
    at = str(edge.base_url).replace("http://", "ws://").rstrip("/")
    other = f"{at}/v1/sessions/{session_id}/events/ws?agent=assistant"
    rng = random.Random("penstock")
    hostile = [
        b"\xff" * 20,  # reserved bits and opcode
        b"\x81\x05hello",  # without a mask
        b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff",  # a length beyond every limit
        b"\x09\xfe\xff\xff" + bytes(300),  # a fragmented ping that is too long
        b"\x88\x82\0\0\0\0\x03\xe7",  # a close code that does not exist
        b"\x80\x80\0\0\0\0",  # a continuation of no message
        *(rng.randbytes(rng.randrange(1, 400)) for _ in range(6)),
    ]
    async with connect(other, proxy=None) as connection:
        for body in hostile:
            await websocket_garbage(edge, session_id, body)
        await waiting.started()
        assert b"lifecycle" in bytes(str(await asyncio.wait_for(connection.recv(), 30)), "utf-8")
