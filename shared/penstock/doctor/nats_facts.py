"""Collects the facts about a deployment that NATS itself shows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from penstock.budgets.account import WITHOUT_COST, is_current, rooms, used
from penstock.budgets.accounts import BUCKET
from penstock.budgets.admission import CurrentBudgets
from penstock.bus import Bus, streams, subjects
from penstock.bus.admin import migrate
from penstock.bus.admin.configuration import declared, schema_of
from penstock.bus.admin.ensure import shards_of
from penstock.bus.admin.permissions import SUBSCRIBER
from penstock.bus.errors import STREAM_NOT_FOUND, ApiError
from penstock.bus.records.budgets import BudgetAccount
from penstock.bus.shards import group_of
from penstock.doctor.facts import AccountFact, ConsumerFact, Facts, PartitionFact, StreamFact
from penstock.settings.keep import Keep

# A consumer counts as read if a process waits for its messages now, or has taken one in this time.
IDLE: timedelta = timedelta(minutes=1)
# The services whose durable consumers have the service's name, or begin with it and a hyphen.
_SERVICES = frozenset({"approvals", "automations", "connector", "workflows"})


async def in_nats(bus: Bus, keep: Keep) -> Facts:
    """Return the facts that NATS itself shows, and the runs that `keep` lets be erased early.
    Raises BusError."""
    retention = bus.settings.retention
    shards = 1
    differs: dict[str, list[str]] = {}
    if await bus.has("KV_checkpoints"):
        shards = (await shards_of(bus)).made
        for each in await migrate.plan(bus, retention):
            differs.setdefault(each.stream, []).append(str(each))
    found, consumers = [], []
    letters = 0
    for wanted in declared(retention, shards):
        name = wanted["name"]
        try:
            info = await bus.api(f"STREAM.INFO.{name}")
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            found.append(StreamFact(name, exists=False))
            continue
        config, state = info["config"], info["state"]
        found.append(
            StreamFact(
                name,
                schema=schema_of(config),
                bytes=state["bytes"],
                max_bytes=config.get("max_bytes", -1),
                replicas=config["num_replicas"],
                max_age_s=config.get("max_age", 0) / 1e9,
                differs=differs.get(name, ()),
            )
        )
        if name == streams.DEADLETTERS:
            letters = state["messages"]
        if state.get("consumer_count"):
            consumers += await _consumers(bus, name)
    there = {each.name for each in found if each.exists}
    content = await bus.content.check() if streams.KEYS in there else ""
    partitions = []
    if {"KV_checkpoints", "KV_leases"} <= there:
        for shard in range(shards):
            if streams.raw_of(shard) in there:
                partitions += await _partitions(bus, shard)
    account = await bus.api("INFO")
    await bus.clock.refresh()
    accounts: list[AccountFact] = []
    mistake = ""
    if {"KV_budgets", "KV_policies"} <= there:
        accounts, mistake = await _accounts(bus)
    return Facts(
        stored_bytes=account["storage"],
        max_stored_bytes=account["limits"]["max_storage"],
        clock_ahead_s=bus.clock.offset_s,
        content=content,
        schema=streams.SCHEMA,
        shards=shards,
        streams=found,
        early=[*map(str, keep.early)],
        consumers=consumers,
        partitions=partitions,
        dead_letters=letters,
        accounts=accounts,
        budgets_mistake=mistake,
    )


async def services_in_nats(bus: Bus) -> tuple[dict[str, bool], list[PartitionFact]]:
    """Return whether each service that has ever run takes its work, and the partitions of RAW.
    Raises BusError."""
    takes: dict[str, bool] = {}
    for stream in (streams.COMMANDS, streams.EVENTS):
        for each in await _consumers(bus, stream):
            service = each.name.partition("-")[0]
            if service in _SERVICES:
                takes[service] = takes.get(service, False) or each.polled
    partitions: list[PartitionFact] = []
    for shard in range((await shards_of(bus)).made):
        partitions += await _partitions(bus, shard)
    takes["normalizer"] = all(each.held for each in partitions)
    return dict(sorted(takes.items())), partitions


async def _accounts(bus: Bus) -> tuple[list[AccountFact], str]:
    """Return the current accounts of budgets, and the mistake for which no budgets hold."""
    budgets, found = CurrentBudgets(bus), []
    await budgets.require_read()
    if "kv" in budgets.refused:
        return [], budgets.refused["kv"]
    for entry in await bus.bucket(BUCKET).entries("account.*"):
        account = BudgetAccount.model_validate_json(entry.value)
        budget = budgets.current.by_id.get(account.budget)
        if budget is not None and is_current(account, bus.clock.now()):
            share = max((room.share for room in rooms(account, budget)), default=0.0)
            unknown = used(account).get(WITHOUT_COST, 0)
            per_run = budget.per == "run"
            found.append(AccountFact(budget.id, account.subject, share, per_run, unknown))
    return found, ""


async def _partitions(bus: Bus, shard: int) -> list[PartitionFact]:
    group, raw = group_of(shard), streams.raw_of(shard)
    leases = {each.key for each in await bus.bucket("leases").entries(f"{group}.part.*")}
    found = []
    for number in range(await migrate.partitions(bus, shard)):
        # The checkpoint is read last. If the checkpoint was read first, frames that arrive between
        # the two reads would wrongly count as unread.
        last = await bus.tail(raw, subjects.raw_of_partition(number))
        checkpoint = await bus.bucket("checkpoints").get(f"{group}.{number}")
        done = int(checkpoint.value) if checkpoint and checkpoint.value.isdigit() else 0
        behind = max(0, last.sequence - done) if last is not None else 0
        found.append(PartitionFact(raw, number, behind, f"{group}.part.{number}" in leases))
    return found


async def _consumers(bus: Bus, stream: str) -> list[ConsumerFact]:
    """Return the durable consumers of a stream, except one that no program has ever used."""
    listed = await bus.jetstream.consumers(stream)
    return [
        _consumer(stream, each)
        for each in listed
        if each["config"].get("durable_name") and not _is_unused(each)
    ]


def _is_unused(info: dict[str, Any]) -> bool:
    """Return whether this is the durable that `penstock streams make` makes in every installation,
    and has delivered no message yet."""
    return bool(info["name"] == SUBSCRIBER and info["delivered"]["consumer_seq"] == 0)


def _consumer(stream: str, info: dict[str, Any]) -> ConsumerFact:
    active = info["delivered"].get("last_active")
    recently = active is not None and _time(info["ts"]) - _time(active) < IDLE
    return ConsumerFact(
        stream,
        info["name"],
        info["num_pending"],
        info["num_ack_pending"],
        polled=bool(info["num_waiting"]) or recently,
    )


def _time(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp)
