"""Makes the durable consumers of subscribers, whose NATS users may not make consumers themselves,
and grants them the content of sealed events.

A user that may make a consumer could choose any subject for the consumer's deliveries. The server
does not check whether the user may publish to this subject, so the user could write to every
subject.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from penstock.bus import subjects
from penstock.bus.admin.ensure import shards_of
from penstock.bus.admin.permissions import SUBSCRIBER, USERS
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import CONSUMER_NOT_FOUND, ApiError
from penstock.bus.state.kv import Buckets
from penstock.bus.streams import EVENTS, events_of

ACK_WAIT_S = 30  # seconds after which the server delivers an unacknowledged event again
MAX_DELIVER = 20  # the most deliveries of one event
MAX_PENDING = 1000  # the most events that are delivered and not yet acknowledged

Place = Literal["beginning", "now"]
Start = Place | datetime
PLACES: Final[tuple[Place, ...]] = ("beginning", "now")

_MARK: Final = "penstock-subscriber"  # the key in the metadata that marks durables of this module
# The key in the metadata of the grant `content`, with the tenants as a list in JSON; an empty list
# means all tenants. Without this key, the grant is `shape`.
_CONTENT: Final = "penstock-content"
_SERVICES: Final = frozenset(user.name for user in USERS)
# The fields of a durable's configuration that are copied to further shards.
_KEPT: Final = (
    *("durable_name", "description", "filter_subject", "filter_subjects", "ack_policy"),
    *("ack_wait", "max_deliver", "max_ack_pending", "metadata"),
)


@dataclass(frozen=True, slots=True)
class Durable:
    """A subscriber's durable consumer, in each shard of EVENTS.

    `events` are types such as `llm.tool_call` and `approval.*`; empty means all events. `start` is
    the place where a new durable begins: the oldest stored event, the next event, or the first
    event that was stored at a time or later. The place of a durable that exists is never changed.
    """

    name: str
    events: tuple[str, ...] = ()
    start: Start = "beginning"

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "durable_name": self.name,
            "description": "Every event once, for a subscriber",
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": ACK_WAIT_S * 1_000_000_000,
            "max_deliver": MAX_DELIVER,
            "max_ack_pending": MAX_PENDING,
            "metadata": {_MARK: "yes"},
        }
        if self.events:
            config["filter_subjects"] = subjects.event_patterns(self.events)
        if isinstance(self.start, datetime):
            config["deliver_policy"] = "by_start_time"
            config["opt_start_time"] = self.start.astimezone(UTC).isoformat()
        elif self.start == "now":
            config["deliver_policy"] = "new"
        return config


@dataclass(frozen=True, slots=True)
class Grant:
    """What a subscriber may read of sealed events: with `content` all of them, else the envelope.
    With `tenants`, the content of these tenants' runs only."""

    content: bool = False
    tenants: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        if not self.content:
            return "shape"
        return "content" + (f" of {', '.join(self.tenants)}" if self.tenants else "")

    def covers(self, tenant: str) -> bool:
        return self.content and (not self.tenants or tenant in self.tenants)


SHAPE: Final = Grant()


def grant_of(config: Mapping[str, Any]) -> Grant:
    """Return the grant in the configuration of a durable, `SHAPE` if it cannot be read."""
    try:
        tenants = json.loads((config.get("metadata") or {})[_CONTENT])
    except (KeyError, ValueError):
        return SHAPE
    if not (isinstance(tenants, list) and all(isinstance(each, str) for each in tenants)):
        return SHAPE
    return Grant(True, tuple(tenants))


async def grant_to(bus: HasJetStream, stream: str, durable: str) -> Grant:
    """Return the grant of a durable now, `SHAPE` if there is no such durable. Raises BusError."""
    try:
        return grant_of((await bus.jetstream.api(f"CONSUMER.INFO.{stream}.{durable}"))["config"])
    except ApiError as error:
        if error.code != CONSUMER_NOT_FOUND:
            raise
        return SHAPE


async def grant(bus: Buckets, name: str, given: Grant) -> list[str]:
    """Give a durable this grant, in each shard that has the durable; return these shards' streams.
    Raises ValueError for the durable of a service, BusError."""
    if name.partition("-")[0] in _SERVICES:
        raise ValueError(f"{name} is a durable of a service")
    changed = []
    for shard in range((await shards_of(bus)).made):
        stream = events_of(shard)
        for info in await bus.jetstream.consumers(stream):
            config = info["config"]
            if config.get("durable_name") == name:
                metadata = {
                    key: value
                    for key, value in (config.get("metadata") or {}).items()
                    if key != _CONTENT and not key.startswith("_nats.")
                }
                metadata[_MARK] = "yes"
                if given.content:
                    metadata[_CONTENT] = json.dumps(given.tenants)
                call = f"CONSUMER.DURABLE.CREATE.{stream}.{name}"
                body = {"stream_name": stream, "config": {**config, "metadata": metadata}}
                await bus.jetstream.api(call, body)
                changed.append(stream)
    return changed


async def ensure(bus: Buckets) -> list[str]:
    """Make the missing durables of each shard; return a line for each durable that was made.

    Each shard needs the durable of the user `subscriber`, and each further shard every durable that
    `make` has made in the first one. A durable of a new shard begins at the shard's first event.
    """
    count = (await shards_of(bus)).made
    known = [Durable(SUBSCRIBER).config()]
    known += [config for config in await _made(bus, EVENTS) if config["durable_name"] != SUBSCRIBER]
    return [
        f"the durable {config['durable_name']} of {events_of(shard)}"
        for shard in range(count)
        for config in known
        if await _ensure(bus, events_of(shard), _for_shard(config, shard))
    ]


async def make(bus: Buckets, durable: Durable) -> list[str]:
    """Make the durable in each shard that lacks it; return the streams that got the durable."""
    names = [events_of(shard) for shard in range((await shards_of(bus)).made)]
    return [name for name in names if await _ensure(bus, name, durable.config())]


async def listed(bus: Buckets) -> list[dict[str, Any]]:
    """Return the server's description of the subscribers' durables of each shard, sorted."""
    found = [
        info
        for shard in range((await shards_of(bus)).made)
        for info in await bus.jetstream.consumers(events_of(shard))
        if _is_ours(info["config"])
    ]
    return sorted(found, key=lambda info: (info["name"], info["stream_name"]))


async def delete(bus: Buckets, name: str) -> list[str]:
    """Delete a subscriber's durable in each shard; return the streams that had the durable."""
    deleted = []
    for info in await listed(bus):
        if info["name"] == name:
            await bus.jetstream.api(f"CONSUMER.DELETE.{info['stream_name']}.{name}")
            deleted.append(str(info["stream_name"]))
    return deleted


def _is_ours(config: dict[str, Any]) -> bool:
    marked = _MARK in (config.get("metadata") or {})
    return marked or config.get("durable_name") == SUBSCRIBER


def _for_shard(config: dict[str, Any], shard: int) -> dict[str, Any]:
    if not shard:
        return config
    return {name: each for name, each in config.items() if name != "opt_start_time"} | {
        "deliver_policy": "all"
    }


async def _made(bus: HasJetStream, stream: str) -> list[dict[str, Any]]:
    return [
        {name: info["config"][name] for name in _KEPT if name in info["config"]}
        for info in await bus.jetstream.consumers(stream)
        if _is_ours(info["config"])
    ]


async def _ensure(bus: HasJetStream, stream: str, config: dict[str, Any]) -> bool:
    api, name = bus.jetstream.api, config["durable_name"]
    try:
        await api(f"CONSUMER.INFO.{stream}.{name}")
        return False
    except ApiError as error:
        if error.code != CONSUMER_NOT_FOUND:
            raise
    call = f"CONSUMER.DURABLE.CREATE.{stream}.{name}"
    await api(call, {"stream_name": stream, "config": config})
    return True
