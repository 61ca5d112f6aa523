"""Lists of sessions: who sees a session, and the order."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import uuid_utils

from penstock.bus import Bus
from penstock.bus.subjects import session_key
from penstock_edge.sources import session_list
from penstock_edge.sources.run_list import RunList
from penstock_edge.sources.session_list import SessionList
from support.drive.bus import new_run_id

AGENTS = ["assistant", "helper"]


@pytest.fixture
def sessions(bus: Bus) -> SessionList:
    return SessionList(bus, RunList(bus))


def owner() -> str:
    return f"user-{uuid_utils.uuid7()}"


async def run(bus: Bus, user_id: str, session: str, run_id: str = "", **fields: Any) -> str:
    run_id = run_id or new_run_id()
    at = "2026-01-01T00:00:00.000Z"
    record = {"run_id": run_id, "agent": "assistant", "session_id": session, "user_id": user_id}
    record |= {"status": "completed", "created_at": at, "updated_at": at, **fields}
    await bus.bucket("runs").put(run_id, orjson.dumps(record))
    return run_id


async def put(bus: Bus, of: str, session: str, *runs: str, **fields: Any) -> str:
    record = {"agent": "assistant", "session_id": session, "runs": runs, **fields}
    key = session_key(of, str(record["agent"]), session)
    await bus.bucket("sessions").put(key, orjson.dumps(record))
    return key


async def listed(sessions: SessionList, user_id: str, **query: Any) -> list[str]:
    found, count = await sessions.page(user_id, AGENTS, **query)
    assert count >= len(found)
    return [each.record.session_id for each in found]


async def test_a_users_sessions_are_listed_with_their_first_and_last_runs(
    bus: Bus, sessions: SessionList
) -> None:
    alice, bob = owner(), owner()
    runs = [await run(bus, alice, "s", message=f"number {n}") for n in range(3)]
    await put(bus, alice, "s", *runs, user_id=alice)
    await put(bus, alice, "helped", agent="helper", user_id=alice)
    await put(bus, alice, "of-no-agent", agent="gone", user_id=alice)
    await put(bus, bob, "s", user_id=bob)
    found, count = await sessions.page(alice, AGENTS)
    assert count == 2
    by_id = {each.record.session_id: [run.message for run in each.ends] for each in found}
    assert by_id == {"s": ["number 0", "number 2"], "helped": []}


async def test_a_record_that_names_a_wrong_owner_is_not_shown_to_that_owner(
    bus: Bus, sessions: SessionList
) -> None:
    alice, mallory = owner(), owner()
    stolen = await run(bus, mallory, "s")
    await put(bus, alice, "s", stolen, user_id=mallory)
    await put(bus, alice, "unnamed", stolen)
    assert (await listed(sessions, mallory), await listed(sessions, alice)) == ([], [])


async def test_sessions_are_sorted_by_their_creation_or_by_their_last_change(
    bus: Bus, sessions: SessionList
) -> None:
    alice = owner()
    runs = [await run(bus, alice, f"s{n}") for n in range(3)]
    for number, run_id in enumerate(runs):
        await put(bus, alice, f"s{number}", run_id, user_id=alice)
    assert await listed(sessions, alice) == ["s0", "s1", "s2"]
    assert await listed(sessions, alice, descending=True) == ["s2", "s1", "s0"]
    await run(bus, alice, "s0", runs[0], updated_at="2026-03-01T00:00:00.000Z")
    await run(bus, alice, "s2", runs[2], updated_at="2026-02-01T00:00:00.000Z")
    assert await listed(sessions, alice, sort_by="updated") == ["s1", "s2", "s0"]
    # The session's further run is now its last run, which decides the order.
    later = await run(bus, alice, "s1", updated_at="2026-04-01T00:00:00.000Z")
    await put(bus, alice, "s1", runs[1], later, user_id=alice)
    await run(bus, alice, "s1", runs[1], updated_at="2020-04-01T00:00:00.000Z")
    assert await listed(sessions, alice, sort_by="updated") == ["s2", "s0", "s1"]


@pytest.mark.parametrize("at_once", [3, 100])
async def test_pages_have_all_sessions_once(
    bus: Bus, sessions: SessionList, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_list, "READ_AT_ONCE", at_once)
    alice = owner()
    made = [f"s{number}" for number in range(11)]
    for session in made:
        run_id = await run(bus, alice, session)
        await put(bus, alice, session, run_id, user_id=alice)
    found = [await listed(sessions, alice, first=first, limit=4) for first in (0, 4, 8, 12)]
    assert found == [made[:4], made[4:8], made[8:], []]
    _, count = await sessions.page(alice, AGENTS, limit=1)
    assert count == 11


async def test_sessions_are_found_by_a_part_of_their_first_message(
    bus: Bus, sessions: SessionList, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_list, "READ_AT_ONCE", 2)
    alice = owner()
    for number in range(7):
        text = "Rain in ROME" if number % 3 == 0 else "Sun"
        run_id = await run(bus, alice, f"s{number}", message=text)
        await put(bus, alice, f"s{number}", run_id, user_id=alice)
    found, count = await sessions.named(
        alice, AGENTS, "rome", "created", descending=True, first=1, limit=1
    )
    assert ([each.record.session_id for each in found], count) == (["s3"], 3)


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"[]",
        b'{"agent": 1, "session_id": "x"}',
        b'{"agent": "assistant", "session_id": "broken", "runs": ["x"]}',
        b'{"agent": "assistant", "session_id": "broken", "runs": 3}',
        b'{"agent": "assistant", "session_id": "broken", "queue": 3}',
    ],
)
async def test_a_broken_record_is_left_out_and_logged(
    bus: Bus, sessions: SessionList, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    alice = owner()
    await put(bus, alice, "whole", user_id=alice)
    key = session_key(alice, "assistant", "broken")
    await bus.bucket("sessions").put(key, value)
    await bus.bucket("sessions").put("odd", b"{}")
    assert await listed(sessions, alice) == ["whole"]
    assert key in caplog.text


async def test_deleted_sessions_are_left_out(bus: Bus, sessions: SessionList) -> None:
    alice = owner()
    keys = [await put(bus, alice, f"s{number}", user_id=alice) for number in range(5)]
    await sessions.index.caught_up()
    await bus.bucket("sessions").delete(keys[0])
    await bus.api("STREAM.PURGE.KV_sessions", {"filter": f"$KV.sessions.{keys[2]}"})
    assert sorted(await listed(sessions, alice)) == ["s1", "s3", "s4"]
    assert (await sessions.page(alice, AGENTS))[1] == 3
