"""Streams and buckets: ensured at start as they are declared, and never changed by a start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.bus import Bus, StartUpError, messages, streams
from penstock.bus.streams import Retention
from support.bus import connected
from support.nats import NatsServer
from support.repository import ROOT

DAY_NS = 86_400 * 10**9


async def configs(bus: Bus) -> dict[str, dict[str, Any]]:
    """Every stream's configuration as the server has it."""
    listed = await bus.api("STREAM.LIST")
    assert listed["total"] == len(listed["streams"])
    return {stream["config"]["name"]: stream["config"] for stream in listed["streams"]}


async def test_a_start_makes_every_stream_and_bucket(own_bus: Bus) -> None:
    names = {
        *["COMMANDS", "RAW", "EVENTS", "SCHEDULES", "DEADLETTERS", "OBJ_payloads"],
        *["ADVISORIES", "KV_letters"],
        *["KV_runs", "KV_sessions", "KV_aliases", "KV_idempotency", "KV_claims", "KV_sent"],
        *["KV_approvals", "KV_pauses", "KV_threads", "KV_rules", "KV_tokens"],
        *["KV_checkpoints", "KV_leases"],
    }
    assert set(await configs(own_bus)) == names


async def test_the_streams_are_what_the_design_says(own_bus: Bus) -> None:
    found = await configs(own_bus)
    raw, events, commands = found["RAW"], found["EVENTS"], found["COMMANDS"]

    assert raw["subjects"] == ["raw.*.*"]
    assert raw["subject_transform"] == {
        "src": "raw.*.*",
        "dest": "rawp.{{partition(16,1)}}.{{wildcard(1)}}.{{wildcard(2)}}",
    }
    assert raw["republish"]["src"] == "rawp.*.*.*"
    assert raw["republish"]["dest"] == "frames.{{wildcard(2)}}.{{wildcard(3)}}"
    assert (raw["max_age"], raw["allow_atomic"], raw["allow_direct"]) == (DAY_NS, True, True)

    assert sorted(events["subjects"]) == [
        *["approval.>", "artifact.>", "automation.>", "custom.>", "dispatch.>", "lifecycle.>"],
        *["llm.>", "retrieval.>", "state.>", "system.>", "workflow.>"],
    ]
    assert (events["republish"]["src"], events["republish"]["dest"]) == (">", "live.>")
    assert (events["max_age"], events["allow_atomic"]) == (7 * DAY_NS, True)
    # the server's default stops at 1,000
    assert min(stream["max_consumers"] for stream in found.values()) == 100_000

    assert (commands["retention"], commands["discard"]) == ("workqueue", "new")
    schedules = found["SCHEDULES"]
    assert schedules["subjects"] == ["schedule.>", "due.>"]
    assert (schedules["max_age"], schedules["allow_msg_schedules"]) == (0, True)
    letters, advisories = found["DEADLETTERS"], found["ADVISORIES"]
    assert letters["subjects"] == ["deadletter.*.*"]
    assert letters["duplicate_window"] == letters["max_age"] == 30 * DAY_NS
    assert advisories["subjects"] == ["$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"]
    assert (advisories["retention"], advisories["max_age"]) == ("workqueue", 30 * DAY_NS)


async def test_a_bucket_keeps_one_value_a_key_and_lets_keys_expire(own_bus: Bus) -> None:
    for name, config in (await configs(own_bus)).items():
        if name.startswith("KV_"):
            assert config["subjects"] == [f"$KV.{name.removeprefix('KV_')}.>"]
            assert (config["max_msgs_per_subject"], config["allow_msg_ttl"]) == (1, True)
            assert (config["allow_rollup_hdrs"], config["discard"]) == (True, "new")


async def test_a_second_start_changes_nothing(own_bus: Bus, fresh_nats: NatsServer) -> None:
    async def whole() -> list[Any]:
        listed = await own_bus.api("STREAM.LIST")
        return sorted((s["config"]["name"], s["config"], s["created"]) for s in listed["streams"])

    before = await whole()
    async with connected(fresh_nats.url):
        assert await whole() == before


async def test_many_starts_at_once_agree(fresh_nats: NatsServer) -> None:
    async def start() -> int:
        async with connected(fresh_nats.url) as bus:
            return len(await configs(bus))

    assert set(await asyncio.gather(*(start() for _ in range(5)))) == {21}


async def test_what_is_kept_is_not_changed_by_a_start_with_other_settings(
    own_bus: Bus, fresh_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(fresh_nats.url, retention=Retention(events_max_age_s=60)):
        assert (await configs(own_bus))["EVENTS"]["max_age"] == 7 * DAY_NS
    assert "the stream EVENTS stays as it is: max_age is 604800" in caplog.text


async def test_a_stream_of_another_owner_is_refused(own_bus: Bus, fresh_nats: NatsServer) -> None:
    await own_bus.api("STREAM.DELETE.EVENTS")
    await own_bus.js.add_stream(name="EVENTS", subjects=["theirs.>"])
    with pytest.raises(StartUpError, match=r"stream EVENTS .* not Penstock's.*theirs"):
        async with connected(fresh_nats.url):
            pass
    assert (await configs(own_bus))["EVENTS"]["subjects"] == ["theirs.>"]


async def test_the_retention_settings_reach_the_streams(fresh_nats: NatsServer) -> None:
    retention = Retention(raw_max_age_s=60, events_max_age_s=120, max_bytes=10_000_000)
    async with connected(fresh_nats.url, retention=retention) as bus:
        found = await configs(bus)
    assert found["RAW"]["max_age"] == 60 * 10**9
    assert found["EVENTS"]["max_age"] == 120 * 10**9
    # what a paused run needs must outlive its events
    assert found["OBJ_payloads"]["max_age"] == found["KV_runs"]["max_age"]
    assert found["EVENTS"]["max_bytes"] == 10_000_000


def test_no_two_streams_want_the_same_subject() -> None:
    first = [
        subject.split(".")[0]
        for stream in streams.streams(Retention())
        for subject in stream.subjects or []
    ]
    assert len(set(first)) == len(first)
    assert not {"rawp", "frames", "live", "control", "turn", "decide"} & set(first)


def test_the_readme_names_every_stream_bucket_and_header() -> None:
    readme = (ROOT / "shared" / "penstock" / "bus" / "README.md").read_text()
    for config in (*streams.streams(Retention()), *streams.buckets(Retention())):
        name = (config.name or "").removeprefix("KV_")
        assert f"| {name} |" in readme, name
    headers = [value for value in vars(messages).values() if str(value).startswith("Penstock-")]
    assert len(headers) > 8
    for header in headers:
        assert f"`{header}`" in readme, header
