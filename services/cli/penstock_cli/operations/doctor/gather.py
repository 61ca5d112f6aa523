"""Collect the facts about a deployment: over NATS and HTTP, and from files."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import orjson

from penstock.budgets.account import WITHOUT_COST, is_current, rooms, used
from penstock.budgets.accounts import BUCKET
from penstock.budgets.admission import CurrentBudgets
from penstock.bus import Bus, BusError, StartUpError, streams, subjects
from penstock.bus.admin import migrate
from penstock.bus.admin.configuration import declared, schema_of
from penstock.bus.admin.ensure import shards_of
from penstock.bus.admin.permissions import NAMES, SUBSCRIBER, USER_INFO, USERS, User
from penstock.bus.errors import STREAM_NOT_FOUND, ApiError
from penstock.bus.records import BudgetAccount
from penstock.bus.shards import group_of
from penstock.service import bus_settings
from penstock.settings import ConfigurationError, ServerAgent, Settings, load_config
from penstock.web.auth import AuthConfig
from penstock.web.auth.jwks import JwksFailure, usable_keys
from penstock_cli.operations.doctor import permissions, values
from penstock_cli.operations.doctor.facts import (
    AccountFact,
    AnswerFact,
    ConsumerFact,
    Facts,
    PartitionFact,
    StreamFact,
)

# A consumer counts as read if a process waits for its messages now, or has taken one in this time.
IDLE: timedelta = timedelta(minutes=1)
TIMEOUT_S = 5.0
# seconds to wait for an answer; NATS answers at once, or never if the user may not ask
PERMISSIONS_S = 2.0


@dataclass(frozen=True, slots=True)
class Places:
    """The files and URLs to check besides NATS. None or empty: there is nothing to check."""

    config: Path | None = None
    probes: Sequence[str] = ()
    values: Sequence[Path] = ()
    chart: Path | None = None


async def in_nats(bus: Bus) -> Facts:
    """Return the facts that NATS itself shows. Raises BusError."""
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
        schema=streams.SCHEMA,
        shards=shards,
        streams=found,
        consumers=consumers,
        partitions=partitions,
        dead_letters=letters,
        accounts=accounts,
        budgets_mistake=mistake,
    )


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


async def outside_nats(facts: Facts, settings: Settings, places: Places) -> Facts:
    """Return the given facts together with the facts about users, files, agents, probes and values.

    Raises:
        ConfigurationError: a named file cannot be read.
    """
    if settings.nats_passwords is not None:
        files = [_file(settings.nats_passwords / name, name) for name in NAMES]
        facts = replace(facts, files=files)
        if not facts.refusal:
            users, granted = await _users(settings, facts.shards)
            facts = replace(facts, users=users, permissions=granted)
    if places.config is not None:
        facts = replace(facts, agents=await _agents(places.config))
    if places.probes:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as http:
            probes = await asyncio.gather(*(_probe(http, url) for url in places.probes))
        facts = replace(facts, probes=probes)
    auth = AuthConfig(**settings.auth.model_dump())
    if places.values and places.chart is not None:
        said = values.read(places.chart, places.values)
        facts = replace(facts, values=said.wrong, wanted=said.wanted)
        if not auth.is_configured:
            auth = replace(auth, jwks_url=said.jwks_url)
    if auth.is_configured:
        facts = replace(facts, auth=await _auth(auth))
    return facts


async def _auth(config: AuthConfig) -> list[AnswerFact]:
    found = []
    if config.allow_unauthenticated_sse:
        said = "every caller is `anonymous`, whatever token they have"
        found.append(AnswerFact("ALLOW_UNAUTHENTICATED_SSE", False, [said]))
    if config.jwt_secret is not None:
        # the settings already check the secret's length
        found.append(AnswerFact("PENSTOCK_AUTH_JWT_SECRET", True))
    if config.jwks_url is None:
        return found
    reasons = []
    try:
        async with httpx.AsyncClient(timeout=config.jwks_timeout_s) as http:
            answer = await http.get(config.jwks_url)
        if answer.status_code == httpx.codes.OK:
            usable_keys(answer.content, config.pinned)
        else:
            reasons.append(f"it answers with status {answer.status_code}")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reasons.append(f"no answer: {error or type(error).__name__}")
    except JwksFailure as error:
        reasons.append(str(error))
    return [*found, AnswerFact(config.jwks_url, not reasons, reasons)]


def _file(path: Path, name: str) -> AnswerFact:
    reasons = []
    try:
        if not path.read_text().strip():
            reasons.append(f"{path} is empty")
        if path.stat().st_mode & stat.S_IROTH:
            reasons.append(f"every user of this machine can read {path}")
    except OSError as error:
        reasons.append(f"{path}: {error.strerror}")
    return AnswerFact(name, not reasons, reasons)


async def _users(settings: Settings, shards: int) -> tuple[list[AnswerFact], list[AnswerFact]]:
    """Log in as the user of every service, and ask NATS for the user's permissions.

    Returns which users can log in, and how these users' permissions differ from the table of
    permissions.
    """
    plain = settings.model_copy(
        update={"nats_user": None, "nats_password": None, "nats_credentials": None}
    )
    users, granted = [], []
    for user in USERS:
        try:
            wanted = bus_settings(plain, "penstock-doctor", user.name)
            wanted = replace(wanted, connect_timeout_s=TIMEOUT_S)
            bus = await Bus.connect(wanted, ensure=False)
            try:
                reasons = await _permissions(bus, user, shards)
            finally:
                await bus.close()
            users.append(AnswerFact(user.name, True))
            granted.append(AnswerFact(user.name, not reasons, reasons))
        except (ConfigurationError, StartUpError, BusError) as error:
            users.append(AnswerFact(user.name, False, [str(error)]))
    return users, granted


async def _permissions(bus: Bus, user: User, shards: int) -> list[str]:
    try:
        answer = await bus.request(USER_INFO, b"", PERMISSIONS_S)
    except BusError:
        return [f"may not ask for its permissions ({USER_INFO}), so they are of another version"]
    return permissions.differences(user, shards, orjson.loads(answer.data)["data"])


async def _agents(config: Path) -> list[AnswerFact]:
    from penstock_connector.checks import check_all  # noqa: PLC0415 - only asked for by --config

    agents = [each for each in load_config(config).agents if isinstance(each, ServerAgent)]
    findings = await check_all(agents, TIMEOUT_S)
    return [AnswerFact(each.agent, each.is_fine, [each.text]) for each in findings]


async def _probe(http: httpx.AsyncClient, url: str) -> AnswerFact:
    """Ask /readyz of one service; `url` is the URL of the service's probe port."""
    try:
        answer = await http.get(f"{url.rstrip('/')}/readyz")
        body = answer.json()
        reasons = [f"{name}: {text}" for name, texts in body["services"].items() for text in texts]
        notices, secret = body.get("notices", ()), body.get("csrf_secret")
        return AnswerFact(url, answer.is_success, reasons, notices, secret)
    except httpx.HTTPError as error:
        return AnswerFact(url, False, [f"no answer: {error}"])
    except (ValueError, LookupError, AttributeError, TypeError):
        return AnswerFact(url, False, [f"what answers with {answer.status_code} is no Penstock"])
