"""A start creates streams and buckets and migrates older ones; it keeps their retention."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from nats.js.api import StreamConfig

from penstock.bus import (
    Bus,
    BusError,
    BusSettings,
    Lease,
    RawWriter,
    StartUpError,
    messages,
    streams,
    subjects,
)
from penstock.bus.admin import configuration, migrate
from penstock.bus.streams import Retention
from support.drive.bus import connected, new_run_id, publish_events
from support.drive.repository import ROOT
from support.real.nats import NatsServer
from support.recorded.released import left, restore

DAY_NS = 86_400 * 10**9


async def configs(bus: Bus) -> dict[str, dict[str, Any]]:
    """Return the configuration of every stream, as the server reports it."""
    listed = await bus.api("STREAM.LIST")
    assert listed["total"] == len(listed["streams"])
    return {stream["config"]["name"]: stream["config"] for stream in listed["streams"]}


async def test_a_start_makes_every_stream_and_bucket(own_bus: Bus) -> None:
    names = {
        *["COMMANDS", "RAW", "EVENTS", "SCHEDULES", "DEADLETTERS", "AUDIT", "OBJ_payloads"],
        *[
            "ADVISORIES",
            "DELIVERIES",
            "JOURNAL",
            "KEYS",
            "KV_deliveries",
            "KV_endpoints",
            "KV_letters",
        ],
        *["KV_runs", "KV_sessions", "KV_aliases", "KV_idempotency", "KV_claims", "KV_sent"],
        *["KV_approvals", "KV_policies", "KV_pauses", "KV_threads", "KV_rules", "KV_tokens"],
        *["KV_workflows", "KV_costs", "KV_budgets"],
        *["KV_checkpoints", "KV_cursors", "KV_listens", "KV_trees", "KV_leases"],
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
    # The server's default is at most 1,000 consumers.
    assert min(stream["max_consumers"] for stream in found.values()) == 100_000

    assert (commands["retention"], commands["discard"]) == ("workqueue", "new")
    schedules = found["SCHEDULES"]
    assert schedules["subjects"] == ["schedule.>", "due.>"]
    assert (schedules["max_age"], schedules["allow_msg_schedules"]) == (0, True)
    journal = found["JOURNAL"]
    # A record that is dropped would be lost to its run, whatever its age.
    assert (journal["subjects"], journal["max_age"]) == (["journal.*", "journal.*.*"], 0)
    assert (journal["discard"], journal["allow_atomic"]) == ("new", True)
    # A limit for each subject would leave the bytes of a replaced key on the disk.
    keys = found["KEYS"]
    assert (keys["subjects"], keys["max_msgs_per_subject"], keys["max_age"]) == (["key.*"], -1, 0)
    assert (keys["discard"], keys.get("deny_delete", False)) == ("new", False)
    letters, advisories = found["DEADLETTERS"], found["ADVISORIES"]
    assert letters["subjects"] == ["deadletter.*.*"]
    assert letters["duplicate_window"] == letters["max_age"] == 30 * DAY_NS
    assert sorted(advisories["subjects"]) == [
        "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
        "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
    ]
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

    assert set(await asyncio.gather(*(start() for _ in range(5)))) == {34}


async def test_what_is_kept_is_not_changed_by_a_start_with_other_settings(
    own_bus: Bus, fresh_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(fresh_nats.url, retention=Retention(events_max_age_s=60)):
        assert (await configs(own_bus))["EVENTS"]["max_age"] == 7 * DAY_NS
    assert "the stream EVENTS stays as it is: max_age is 604800" in caplog.text


async def test_a_stream_that_deletes_what_nobody_has_read_is_told_of(
    own_bus: Bus, fresh_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert "read or not" not in caplog.text
    raw = (await configs(own_bus))["RAW"]
    await own_bus.api("STREAM.UPDATE.RAW", {**raw, "max_bytes": 1_000_000})
    async with connected(fresh_nats.url):
        pass
    assert "the stream RAW deletes its oldest messages beyond 1000000 bytes" in caplog.text


async def test_a_stream_of_another_owner_is_refused(own_bus: Bus, fresh_nats: NatsServer) -> None:
    await own_bus.api("STREAM.DELETE.EVENTS")
    await own_bus.jetstream.nats.add_stream(name="EVENTS", subjects=["theirs.>"])
    with pytest.raises(StartUpError, match=r"stream EVENTS .* not Penstock's.*theirs"):
        async with connected(fresh_nats.url):
            pass
    assert (await configs(own_bus))["EVENTS"]["subjects"] == ["theirs.>"]


async def test_replicas_on_a_server_alone_are_told_with_what_to_do(fresh_nats: NatsServer) -> None:
    with pytest.raises(StartUpError, match=r"3 replicas needs a cluster.*set PENSTOCK_REPLICAS=1"):
        async with connected(fresh_nats.url, retention=Retention(replicas=3)):
            pass


async def test_the_retention_settings_reach_the_streams(fresh_nats: NatsServer) -> None:
    retention = Retention(raw_max_age_s=60, events_max_age_s=120, max_bytes=10_000_000)
    async with connected(fresh_nats.url, retention=retention) as bus:
        found = await configs(bus)
    assert found["RAW"]["max_age"] == 60 * 10**9
    assert found["EVENTS"]["max_age"] == 120 * 10**9
    # A paused run needs its record and its payloads for longer than its events.
    assert found["OBJ_payloads"]["max_age"] == found["KV_runs"]["max_age"]
    assert found["EVENTS"]["max_bytes"] == 10_000_000


def test_no_two_streams_want_the_same_subject() -> None:
    first = [
        token
        for stream in streams.streams(Retention())
        for token in {subject.split(".")[0] for subject in stream.subjects or []}
    ]
    assert len(set(first)) == len(first)
    assert not {"rawp", "frames", "live", "control", "handover", "turn", "decide"} & set(first)


def test_the_documents_name_every_stream_bucket_and_header() -> None:
    readme = (ROOT / "shared" / "penstock" / "bus" / "README.md").read_text()
    rows = {row.split("|")[1].split(",")[0].strip() for row in readme.splitlines() if "|" in row}
    for config in (*streams.streams(Retention()), *streams.buckets(Retention())):
        name = (config.name or "").removeprefix("KV_")
        assert name in rows, name
    headers = [value for value in vars(messages).values() if str(value).startswith("Penstock-")]
    assert len(headers) > 8
    named = (ROOT / "docs" / "bus-headers.md").read_text()
    for header in headers:
        assert f"`{header}`" in named, header


# upgrades


@asynccontextmanager
async def of_release_0_1(server: NatsServer) -> AsyncIterator[Bus]:
    """Connect to a server that holds the streams of release 0.1."""
    bus = await Bus.connect(BusSettings(url=server.url), ensure=False)
    try:
        await restore(bus, left("0.1"))
        yield bus
    finally:
        await bus.close()


async def schemas(bus: Bus) -> set[str | None]:
    return {config["metadata"].get(streams.SCHEMA_KEY) for config in (await configs(bus)).values()}


async def held(bus: Bus) -> dict[str, int]:
    """Return the number of messages of each stream that has any.

    `KV_leases` is left out, because the number of leases changes during the test.
    """
    listed = await bus.api("STREAM.LIST")
    counts = {each["config"]["name"]: each["state"]["messages"] for each in listed["streams"]}
    return {name: count for name, count in counts.items() if count and name != "KV_leases"}


async def test_a_start_brings_the_streams_of_an_older_release_forward_and_loses_nothing(
    fresh_nats: NatsServer,
) -> None:
    async with of_release_0_1(fresh_nats) as old:
        before = await held(old)
        assert (await configs(old))["DEADLETTERS"]["duplicate_window"] < DAY_NS
        async with connected(fresh_nats.url) as bus:
            found = await configs(bus)
            assert await schemas(bus) == {str(streams.SCHEMA)}
            assert found["DEADLETTERS"]["duplicate_window"] == 30 * DAY_NS
            assert "ADVISORIES" in found
            assert await held(bus) == before


async def test_many_starts_at_once_bring_an_older_release_forward(fresh_nats: NatsServer) -> None:
    async with of_release_0_1(fresh_nats) as old:

        async def start() -> None:
            async with connected(fresh_nats.url):
                pass

        await asyncio.gather(*(start() for _ in range(6)))
        assert await schemas(old) == {str(streams.SCHEMA)}


async def newer(bus: Bus, oldest: int) -> dict[str, Any]:
    """Change EVENTS as a later version may have changed it; return the new configuration."""
    found = (await configs(bus))["EVENTS"]
    mark = {streams.SCHEMA_KEY: "99", streams.OLDEST_KEY: f"{oldest}"}
    wanted = {**found, "subjects": sorted({*found["subjects"], "billing.>"}), "metadata": mark}
    await bus.api("STREAM.UPDATE.EVENTS", wanted)
    return (await configs(bus))["EVENTS"]


async def test_a_newer_configuration_is_never_turned_back(
    own_bus: Bus, fresh_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made = await newer(own_bus, streams.SCHEMA)
    async with connected(fresh_nats.url):
        assert (await configs(own_bus))["EVENTS"] == made
    assert "the stream EVENTS has schema 99, newer than this service's" in caplog.text


async def test_a_service_that_is_too_old_for_a_stream_says_so(
    own_bus: Bus, fresh_nats: NatsServer
) -> None:
    made = await newer(own_bus, 98)
    with pytest.raises(StartUpError, match=r"EVENTS was made by a newer .* Upgrade this service"):
        async with connected(fresh_nats.url):
            pass
    assert (await configs(own_bus))["EVENTS"] == made


async def test_a_newer_version_that_was_first_stays_first(
    fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer version migrates the stream while this version waits for the migration lease."""
    async with of_release_0_1(fresh_nats) as old:
        alone = configuration.change_lease

        @asynccontextmanager
        async def later(bus: Bus) -> AsyncIterator[Lease]:
            await newer(old, streams.SCHEMA)
            async with alone(bus) as lease:
                yield lease

        monkeypatch.setattr(configuration, "change_lease", later)
        async with connected(fresh_nats.url):
            events = (await configs(old))["EVENTS"]
    assert events["metadata"][streams.SCHEMA_KEY] == "99"
    assert "billing.>" in events["subjects"]


async def test_an_operator_changes_how_long_things_are_kept(
    own_bus: Bus, fresh_nats: NatsServer, run_id: str
) -> None:
    await publish_events(own_bus, run_id, 1, 5)
    longer = Retention(events_max_age_s=14 * streams.DAY_S)
    changed = await migrate.apply(own_bus, longer)
    assert [(each.stream, each.field) for each in changed] == [("EVENTS", "max_age")]
    assert (await configs(own_bus))["EVENTS"]["max_age"] == 14 * DAY_NS
    assert await migrate.plan(own_bus, longer) == []
    assert (await held(own_bus))["EVENTS"] == 5
    # This age is also shorter than the deduplication window.
    await migrate.apply(own_bus, Retention(events_max_age_s=60))
    assert (await configs(own_bus))["EVENTS"]["max_age"] == 60 * 10**9


async def test_a_later_transform_keeps_the_number_of_partitions(
    own_bus: Bus, fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate.repartition(own_bus, 24)
    made = streams.streams

    def later(retention: Retention) -> list[StreamConfig]:
        configs = made(retention)
        for config in configs:
            if config.subject_transform is not None:
                config.subject_transform.dest += ".late"
        return configs

    monkeypatch.setattr(streams, "streams", later)
    monkeypatch.setattr(streams, "SCHEMA", streams.SCHEMA + 1)
    async with connected(fresh_nats.url):
        found = (await configs(own_bus))["RAW"]["subject_transform"]
    assert found["dest"] == "rawp.{{partition(24,1)}}.{{wildcard(1)}}.{{wildcard(2)}}.late"


async def test_two_operators_at_once_leave_no_partition_without_a_reader(
    own_bus: Bus, fresh_nats: NatsServer
) -> None:
    counts = (24, 40, 20, 33)
    async with AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(connected(fresh_nats.url)) for _ in counts]
        await asyncio.gather(*map(migrate.repartition, buses, counts))
    parts = await own_bus.bucket("leases").get("normalizer.parts")
    assert parts is not None
    assert int(parts.value) == await migrate.partitions(own_bus)
    assert await migrate.partitions(own_bus) in counts


async def test_partitions_that_hold_unread_frames_are_not_given_up(own_bus: Bus) -> None:
    await migrate.repartition(own_bus, 64)
    run_id = next(run for run in iter(new_run_id, "") if subjects.partition_of(run, 64) >= 16)
    await RawWriter(own_bus, run_id, "upstream", "pod/1").write("open", b"{}", leg=1)
    with pytest.raises(BusError, match="not read to their end yet"):
        await migrate.repartition(own_bus, 16, timeout_s=1)
    assert await migrate.at_least(own_bus, 1) == 64


async def test_partitions_that_no_normalizer_would_read_are_refused(own_bus: Bus) -> None:
    # A release that does not know partitions notes none in its lease.
    old = Lease(own_bus, "normalizer.member.old", "old", 60)
    assert await old.acquire()
    with pytest.raises(BusError, match=r"takes up the new partitions.*Upgrade them first"):
        await migrate.repartition(own_bus, 24, timeout_s=1)
    assert await migrate.partitions(own_bus) == 16
