"""Collect the facts about a deployment: over NATS and HTTP, and from files."""

from __future__ import annotations

import asyncio
import copy
import json
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import yaml
from jsonschema.validators import validator_for

from penstock.bus import Bus, BusError, StartUpError, streams
from penstock.bus.admin import migrate
from penstock.bus.admin.configuration import declared, schema_of
from penstock.bus.admin.ensure import shards_of
from penstock.bus.admin.permissions import NAMES, USERS
from penstock.bus.errors import STREAM_NOT_FOUND, ApiError
from penstock.service import bus_settings
from penstock.settings import ConfigurationError, ServerAgent, Settings, load_config
from penstock_cli.operations.doctor.facts import AnswerFact, ConsumerFact, Facts, StreamFact

IDLE: timedelta = timedelta(minutes=1)  # a reader that took nothing for so long is not there
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look besides NATS; None for what is not to be checked."""

    config: Path | None = None
    probes: Sequence[str] = ()
    values: Path | None = None
    chart: Path | None = None


async def in_nats(bus: Bus) -> Facts:
    """Return what NATS knows. Raises BusError."""
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
                differs=differs.get(name, ()),
            )
        )
        if name == streams.DEADLETTERS:
            letters = state["messages"]
        if state.get("consumer_count"):
            consumers += await _consumers(bus, name)
    account = await bus.api("INFO")
    await bus.clock.look()
    return Facts(
        stored_bytes=account["storage"],
        max_stored_bytes=account["limits"]["max_storage"],
        clock_ahead_s=bus.clock.offset_s,
        schema=streams.SCHEMA,
        streams=found,
        consumers=consumers,
        dead_letters=letters,
    )


async def _consumers(bus: Bus, stream: str) -> list[ConsumerFact]:
    """Return the durable consumers of a stream."""
    found: list[ConsumerFact] = []
    offset = 0
    while True:
        answer = await bus.api(f"CONSUMER.LIST.{stream}", {"offset": offset})
        listed = answer["consumers"]
        found += [_consumer(stream, each) for each in listed if each["config"].get("durable_name")]
        offset += len(listed)
        if not listed or offset >= answer["total"]:
            return found


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


async def elsewhere(facts: Facts, settings: Settings, places: Places) -> Facts:
    """Return the facts with those of users, files, agents, probes and values.

    Raises:
        ConfigurationError: a named file cannot be read.
    """
    if settings.nats_passwords is not None:
        files = [_file(settings.nats_passwords / name, name) for name in NAMES]
        facts = replace(facts, files=files)
        if not facts.refusal:
            facts = replace(facts, users=await _users(settings))
    if places.config is not None:
        facts = replace(facts, agents=await _agents(places.config))
    if places.probes:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as http:
            probes = await asyncio.gather(*(_probe(http, url) for url in places.probes))
        facts = replace(facts, probes=probes)
    if places.values is not None and places.chart is not None:
        facts = replace(facts, values=_values(places.chart, places.values))
    return facts


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


async def _users(settings: Settings) -> list[AnswerFact]:
    """Log in as every service's user, each with the password of its file."""
    plain = settings.model_copy(
        update={"nats_user": None, "nats_password": None, "nats_credentials": None}
    )
    found = []
    for user in USERS:
        try:
            wanted = bus_settings(plain, "penstock-doctor", user.name)
            wanted = replace(wanted, connect_timeout_s=TIMEOUT_S)
            bus = await Bus.connect(wanted, ensure=False)
            await bus.close()
            found.append(AnswerFact(user.name, True))
        except (ConfigurationError, StartUpError, BusError) as error:
            found.append(AnswerFact(user.name, False, [str(error)]))
    return found


async def _agents(config: Path) -> list[AnswerFact]:
    from penstock_connector.checks import check_all  # noqa: PLC0415 - only asked for by --config

    agents = [each for each in load_config(config).agents if isinstance(each, ServerAgent)]
    findings = await check_all(agents, TIMEOUT_S)
    return [AnswerFact(each.agent, each.is_fine, [each.text]) for each in findings]


async def _probe(http: httpx.AsyncClient, url: str) -> AnswerFact:
    """Ask /readyz of one service; `url` is that of its probe port."""
    try:
        answer = await http.get(f"{url.rstrip('/')}/readyz")
        body = answer.json()
        reasons = [f"{name}: {text}" for name, texts in body["services"].items() for text in texts]
        return AnswerFact(url, answer.is_success, reasons, body.get("notices", ()))
    except httpx.HTTPError as error:
        return AnswerFact(url, False, [f"no answer: {error}"])
    except (ValueError, LookupError, AttributeError, TypeError):
        return AnswerFact(url, False, [f"what answers with {answer.status_code} is no Penstock"])


def _values(chart: Path, values: Path) -> list[str]:
    """Return what the chart's schema finds wrong in the values. Raises ConfigurationError."""
    try:
        schema = json.loads((chart / "values.schema.json").read_text())
        defaults = yaml.safe_load((chart / "values.yaml").read_text())
        given = yaml.safe_load(values.read_text()) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"cannot read the chart's values: {error}") from error
    if not isinstance(given, dict):
        return [f"{values} has no mapping of values"]
    checker = validator_for(schema)(schema)
    found = sorted(checker.iter_errors(_merged(defaults, given)), key=lambda each: each.json_path)
    return [f"{each.json_path}: {each.message[:300]}" for each in found]


def _merged(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the values as Helm merges them; null removes a default."""
    merged = copy.deepcopy(defaults)
    for key, value in given.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged
