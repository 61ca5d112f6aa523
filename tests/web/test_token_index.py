"""The list of stream tokens in KV `tokens`: pages, expired tokens and broken records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from penstock.bus import Bus
from penstock.service.token_index import TokenIndex
from penstock.web.auth.stream_tokens import FIRST
from support.drive.bus import connected
from support.real.nats import NatsServer


@pytest.fixture
async def bus(fresh_nats: NatsServer) -> AsyncIterator[Bus]:
    async with connected(fresh_nats.url) as bus:
        yield bus


@pytest.fixture
def tokens(bus: Bus) -> TokenIndex:
    return TokenIndex(bus)


async def put(bus: Bus, number: int, user_id: str = "alice", **fields: Any) -> str:
    token_id = f"{number:032x}"
    record: dict[str, Any] = {"id": token_id, "user_id": user_id, "digest": token_id * 2}
    record |= {"created_at": number // 2, "expires_at": 1000.0, **fields}
    await bus.bucket("tokens").put(token_id, orjson.dumps(record))
    return token_id


async def listed(
    tokens: TokenIndex, user_id: str | None, limit: int = 100, now: float = 500
) -> list[list[str]]:
    pages, after = [], FIRST
    while True:
        found = [orjson.loads(each.value) for each in await tokens.page(user_id, after, now, limit)]
        pages.append([each["id"] for each in found])
        if len(found) < limit:
            return pages
        after = (found[-1]["created_at"], found[-1]["id"])


async def test_pages_have_each_token_once_the_oldest_first(bus: Bus, tokens: TokenIndex) -> None:
    made = [await put(bus, number) for number in range(7)]
    bobs = [await put(bus, number, "bob") for number in range(10, 13)]
    assert await listed(tokens, "alice", 3) == [made[:3], made[3:6], made[6:]]
    assert await listed(tokens, "bob") == [bobs]
    assert await listed(tokens, None, 4) == [made[:4], made[4:] + bobs[:1], bobs[1:]]
    assert await listed(tokens, "carol") == [[]]


async def test_what_was_just_issued_extended_and_revoked_is_listed_so(
    bus: Bus, tokens: TokenIndex
) -> None:
    made = [await put(bus, number) for number in range(3)]
    assert await listed(tokens, "alice") == [made]
    await tokens.delete(made[1])
    assert await listed(tokens, "alice") == [[made[0], made[2]]]
    assert await listed(tokens, "alice", now=2000) == [[]]
    await put(bus, 2, expires_at=3000)
    assert await listed(tokens, "alice", now=2000) == [[made[2]]]


async def test_a_token_that_the_server_has_expired_is_left_out(
    bus: Bus, tokens: TokenIndex
) -> None:
    made = [await put(bus, number) for number in range(3)]
    await tokens.index.caught_up()
    await bus.api("STREAM.PURGE.KV_tokens", {"filter": f"$KV.tokens.{made[1]}"})
    assert await listed(tokens, "alice", 2) == [[made[0], made[2]], []]
    tokens.rows.forget_before(0, 10)  # all tokens expired in 1970, so their rows go
    assert tokens.rows.rows("SELECT count(*) FROM tokens") == [(0,)]


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"{}", b'{"user_id": 1, "digest": "", "created_at": 1}']
)
async def test_a_broken_record_is_left_out_and_logged(
    bus: Bus, tokens: TokenIndex, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    made = [await put(bus, number) for number in range(3)]
    await bus.bucket("tokens").put(made[1], value)
    assert await listed(tokens, "alice") == [[made[0], made[2]]]
    assert made[1] in caplog.text
