"""While strangers guess links and tokens, nobody with a valid one is refused or waits for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from support.drive.bus import connected
from support.drive.secured import Secured, bearer
from support.fakes.issuer import SECRET
from support.real.deployment import Deployment, deployment
from support.real.nats import NatsServer

# The short form of this attack is in `test_second_user.py`.
pytestmark = [pytest.mark.real, pytest.mark.chaos]
STRANGERS, CONNECTIONS = 3, 4
OWNERS = 25  # links and tokens that are used for the first time while the strangers guess
ALONE = 5  # links and tokens that are used before
# On a machine that has no time, a first use takes longer also without guesses: there, it may take
# so many times as long as the slowest of these.
TIMES = 8


@pytest.fixture
async def penstock(fresh_nats: NatsServer, tmp_path: Path) -> AsyncIterator[Deployment]:
    services = {"edge": 1, "approvals": 1}
    async with deployment(
        fresh_nats.url, tmp_path / "penstock", [], services, auth_jwt_secret=SECRET
    ) as running:
        yield running


async def test_guesses_of_strangers_do_not_deny_the_holder_of_a_link_or_a_token(
    penstock: Deployment, fresh_nats: NatsServer
) -> None:
    http, approvals, root = penstock.http, penstock.approvals, bearer("root", scope="administer")
    links, tokens = [], []
    async with connected(fresh_nats.url) as bus:
        helper = Secured(approvals, http, bus)
        approval_id = await helper.approval(await helper.live())
    for number in range(ALONE + OWNERS):
        path = f"{approvals}/v1/approvals/{approval_id}/links"
        made = await http.post(path, json={"user": "alice"}, headers=root)
        assert made.status_code == 201, made.text
        links.append(approvals + made.json()["url"])
        body = {"name": f"machine-{number}", "scopes": ["read"]}
        made = await http.post(f"{penstock.edge()}/v1/service-tokens", json=body, headers=root)
        tokens.append(f"Bearer {made.json()['token']}")

    numbers, statuses = count(), set()

    async def guess() -> None:
        while True:
            number = next(numbers)
            link = f"{approvals}/d/pln_{number:043d}"
            token = {"authorization": f"Bearer psv_{number:043d}"}
            statuses.add((await http.get(link)).status_code)
            statuses.add((await http.get(f"{approvals}/v1/approvals", headers=token)).status_code)

    async def use(link: str, token: str) -> float:
        begun_s = time.monotonic()
        assert (await http.get(link)).status_code == 200
        headers = {"authorization": token}
        listed = await http.get(f"{approvals}/v1/approvals", headers=headers)
        assert listed.status_code == 200
        return (time.monotonic() - begun_s) / 2

    secrets = [*zip(links, tokens, strict=True)]
    alone_s = max([await use(*each) for each in secrets[:ALONE]])
    guessing = [asyncio.create_task(guess()) for _ in range(STRANGERS * CONNECTIONS)]
    try:
        while next(numbers) < 500:  # more than any burst that a limit would allow
            await asyncio.sleep(0.05)
        latencies_s = [await use(*each) for each in secrets[ALONE:]]
    finally:
        for task in guessing:
            task.cancel()
        await asyncio.gather(*guessing, return_exceptions=True)
    assert statuses == {401, 404}
    assert sorted(latencies_s)[-2] < max(1, TIMES * alone_s), latencies_s
