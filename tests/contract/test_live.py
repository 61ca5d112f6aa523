"""The subjects, headers and bodies that Penstock publishes match the contract."""

from __future__ import annotations

import json
from typing import Any

import orjson
import uuid_utils
from jsonschema import Draft7Validator, Draft202012Validator

from penstock.bus import Bus, BusSettings, RawWriter, Stored, streams, subjects
from penstock.bus.read import direct
from penstock.service import Context, pod_name
from penstock.settings import Config
from penstock_normalizer.service import NormalizerService
from penstock_normalizer.settings import NormalizerSettings
from support.drive.contract import CONTRACT, schemas
from support.drive.waiting import eventually
from support.fakes.raw import agno_text
from support.real.nats import NatsServer

ASYNCAPI: dict[str, Any] = json.loads((CONTRACT / "asyncapi.json").read_text())
OPENED = {
    "agent": "assistant",
    "protocol": "agno",
    "session_id": "s",
    "user_id": "ada",
    "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
}


async def published(url: str, frames: bytes) -> list[Stored]:
    """Normalize a run whose upstream sent `frames`; return its messages in EVENTS."""
    bus = await Bus.connect(BusSettings(url=url))
    settings = NormalizerSettings(nats_url=url, partition_ttl_s=2, partition_renew_s=0.3)
    normalizer = NormalizerService(Context(Config(), settings, bus, pod_name("normalizer")))
    await normalizer.start()
    try:
        run_id = str(uuid_utils.uuid7())
        writer = RawWriter(bus, run_id, "upstream", "pod/1")
        await writer.write("open", orjson.dumps(OPENED), leg=1)
        await writer.write("bytes", frames, leg=1)
        await writer.write("end", b'{"outcome":"eof"}', leg=1)

        async def whole() -> list[Stored] | None:
            found, _ = await direct.read(bus, streams.EVENTS, subjects.events_of_run(run_id))
            ended = found and found[-1].subject.startswith("lifecycle.completed.")
            return found if ended else None

        return await eventually(whole, what="the end of the run")
    finally:
        await normalizer.stop()
        await bus.close()


async def test_a_run_on_the_bus_is_as_the_contract_says(nats_server: NatsServer) -> None:
    stored = await published(nats_server.url, agno_text("Hello ", "world"))
    known = schemas()
    headers = ASYNCAPI["components"]["messageTraits"]["event"]["headers"]
    told = set()
    for message in stored:
        body = json.loads(message.payload)
        name = f"{body['event']['category']}.{body['event']['action']}"
        told.add(name)
        assert message.subject == f"{name}.{body['run_id']}"
        Draft202012Validator(known[name]).validate(body)
        assert {"session_id", "leg"} <= body.keys()
        Draft7Validator(headers).validate(dict(message.headers))
        assert message.headers["ce-id"] == f"{body['run_id']}.{body['sequence']}"
        assert message.headers["ce-type"] == name
        # Every header is documented, except the headers of NATS itself.
        undocumented = message.headers.keys() - headers["properties"].keys()
        assert {name for name in undocumented if not name.startswith("Nats-")} == set()
    assert {"lifecycle.started", "llm.stream", "lifecycle.completed"} <= told


async def test_a_large_event_is_a_reference_as_the_contract_says(nats_server: NatsServer) -> None:
    stored = await published(nats_server.url, agno_text("x" * 600_000))
    large = [message for message in stored if b"penstock_object" in message.payload]
    assert large
    for message in large:
        body = json.loads(message.payload)
        Draft202012Validator(schemas()["reference"]).validate(body)
        assert body["penstock_object"] == message.headers["ce-id"]


def test_the_stream_is_as_the_contract_says() -> None:
    [stream] = [
        each for each in streams.streams(streams.Retention()) if each.name == streams.EVENTS
    ]
    told = ASYNCAPI["x-jetstream"]
    assert told["subjects"] == stream.subjects
    assert told["max_age_s"] == stream.max_age
    assert {f"{category}.>" for category in subjects.CATEGORIES} == set(told["subjects"])
