"""The requests of a run to the bus: a new round trip per start fails these tests.

A round trip takes some 300 µs of CPU in a process that is not busy, so the round trips are most of
the cost of a start.
"""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bus import Bus
from penstock.bus.read import direct
from penstock.bus.state.kv import Bucket
from penstock.bus.subjects import session_key
from penstock_connector.service import ConnectorService
from support.drive.pipeline import pipeline
from support.fakes.misbehaving import Misbehaving, agents, plays
from support.fakes.raw import agno_text
from support.real.nats import NatsServer


async def test_a_run_of_a_new_session_asks_for_nothing_twice(
    fresh_nats: NatsServer, upstream: Misbehaving, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str]] = []

    def note(owner: type, name: str) -> None:
        method = getattr(owner, name)

        async def noted(self: Any, key: str, *rest: Any, **named: Any) -> Any:
            asked.append((self._name, name, key))
            return await method(self, key, *rest, **named)

        monkeypatch.setattr(owner, name, noted)

    read_commands: list[int] = []
    read = direct.read

    async def reads(bus: Bus, stream: str, *rest: Any, **named: Any) -> Any:
        if stream == "COMMANDS":
            read_commands.append(rest[1])
        return await read(bus, stream, *rest, **named)

    monkeypatch.setattr(direct, "read", reads)
    for name in ("get", "put", "update", "delete"):
        note(Bucket, name)
    upstream.script(plays(agno_text("x")))
    async with pipeline(fresh_nats.url, agents(upstream)) as penstock:
        assert any(isinstance(each, ConnectorService) for each in penstock.services)
        await penstock.ended(await penstock.start_run("agno", "the first one reads the commands"))
        before = len(read_commands)
        command = await penstock.register("agno", "hello", session_id="new")
        asked.clear()
        await penstock.command("start", command)
        await penstock.ended(command.run_id)
    run_id = command.run_id
    session = session_key(command.user_id, "agno", "new")
    ours = [
        (bucket, name)
        for bucket, name, key in asked
        if (bucket == "claims" and key.endswith(run_id)) or (bucket, key) == ("sessions", session)
    ]
    assert ours == [
        ("claims", "update"),  # claim the run
        ("claims", "put"),  # write the leg record
        ("sessions", "get"),  # join the session's queue
        ("sessions", "update"),
        ("sessions", "get"),  # leave the queue
        ("sessions", "update"),
        ("claims", "delete"),
    ]
    assert len(read_commands) == before  # only the new command was read
