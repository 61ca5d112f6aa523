"""Stores payloads that are too large for one message in the object store, and reads them.

Messages carry references to these payloads. nats-py writes the objects, but this module itself
reads them, by direct get. nats-py's reader would wait forever when a chunk is missing, and would
leave a consumer behind after each read.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any

import orjson
from nats.errors import Error as NatsError

from penstock.bus import masking
from penstock.bus.connection.jetstream import HasJetStream
from penstock.bus.errors import BusUnavailable, ObjectGone
from penstock.bus.messages import REFERENCE, Stored, Unreadable, stored_s
from penstock.bus.read import leader
from penstock.bus.read.direct import replay
from penstock.bus.subjects import is_run_id
from penstock.bus.write.fence import MAX_MESSAGE_BYTES

_BUCKET = "payloads"
STREAM = f"OBJ_{_BUCKET}"
_DESCRIPTIONS = f"$O.{_BUCKET}.M."


async def wrap(bus: HasJetStream, name: str, payload: bytes, run_id: str) -> bytes:
    """Return a small payload unchanged; store a payload over 512 KiB, and return a reference.

    A large payload is stored as an object with the name `name`. The name must be the same for the
    same payload, so that a repeated call finds the object and writes nothing. The key of the run
    `run_id` seals the object. Without a run, the object is stored in clear.
    """
    if len(payload) <= MAX_MESSAGE_BYTES:
        return payload
    jetstream = bus.jetstream
    payload = await jetstream.content.sealed_object(name, run_id, payload)
    info = await _info(bus, name)
    if info is None or info["digest"] != _digest(payload):
        await jetstream.connection.wait_usable(jetstream.timeout_s)
        try:
            store = await jetstream.nats.object_store(_BUCKET)
            await store.put(name, payload)
        except NatsError as error:
            raise BusUnavailable(f"the object store did not take {name}: {error}") from error
    return reference(name)


async def info_of(bus: HasJetStream, name: str) -> tuple[str, str] | None:
    """Return the subjects of an object's description and content; None without such an object."""
    info = await _info(bus, name)
    return (_subject(name), f"$O.{_BUCKET}.C.{info['nuid']}") if info is not None else None


async def names(bus: HasJetStream) -> list[str]:
    """Return the names of all objects, also of deleted ones. Raises BusError."""
    found: list[str] = []
    while True:
        request = {"subjects_filter": f"{_DESCRIPTIONS}*", "offset": len(found)}
        answer = await bus.jetstream.api(f"STREAM.INFO.{STREAM}", request)
        subjects = answer["state"].get("subjects") or {}
        encoded = [subject.removeprefix(_DESCRIPTIONS) for subject in subjects]
        found += [base64.urlsafe_b64decode(each).decode() for each in encoded]
        if not subjects or len(found) >= answer.get("total", 0):
            return found


def reference(name: str) -> bytes:
    return REFERENCE + name.encode() + b'"}'


def is_reference(payload: bytes) -> bool:
    return payload.startswith(REFERENCE)


def name_in(payload: bytes) -> str:
    """Return the name of the object to which the payload refers (`is_reference`)."""
    return payload[len(REFERENCE) : -2].decode()


async def unwrap(bus: HasJetStream, payload: bytes, *, whole: bool = False) -> bytes:
    """Return the payload that was passed to `wrap`; of an event with masks only the masked form,
    unless `whole` asks for both. Raises ObjectGone if the object, or a part of the object, no
    longer exists, or if its content cannot be opened."""
    if not is_reference(payload):
        return payload
    if isinstance(payload, Unreadable):
        raise payload.error
    name = name_in(payload)
    info = await _info(bus, name)
    if info is None:
        raise ObjectGone(f"there is no object {name} (any more)")
    subject = f"$O.{_BUCKET}.C.{info['nuid']}"
    chunks = [chunk async for chunk in replay(bus, STREAM, subject)]
    content = b"".join([chunk.payload for chunk in chunks])
    if _digest(content) == info["digest"]:
        at_s = max(map(stored_s, chunks), default=0.0)
        content = await bus.jetstream.content.opened_object(name, content, at_s)
        return content if whole or not _is_event(name) else masking.masked(content)
    # The content that was read is incomplete or old, but the stored object may be complete: a
    # lagging replica may have answered, or another process may have just rewritten the object.
    filtered = {"subjects_filter": subject}
    state = (await bus.jetstream.api(f"STREAM.INFO.{STREAM}", filtered))["state"]
    has_all = (state.get("subjects") or {}).get(subject, 0) >= info["chunks"]
    if has_all or await _info(bus, name) != info:
        raise BusUnavailable(f"the object {name} could not be read completely")
    raise ObjectGone(f"the object {name} is not complete (any more)")


def _is_event(name: str) -> bool:
    run_id, _, sequence = name.partition(".")
    return is_run_id(run_id) and sequence.isdecimal()


async def unwrapped(bus: HasJetStream, stored: Stored) -> Stored:
    """Return an event with the payload that was passed to `wrap`, of which readers get the masked
    form or `masking.whole`. Raises as `unwrap`."""
    if not is_reference(stored.payload):
        return stored
    found = replace(stored, payload=await unwrap(bus, stored.payload, whole=True))
    masking.split(found)
    return found


async def _info(bus: HasJetStream, name: str) -> dict[str, Any] | None:
    """Return an object's description in NATS's object store; None if there is no such object."""
    stored = await leader.tail(bus, STREAM, _subject(name))
    info: dict[str, Any] | None = orjson.loads(stored.payload) if stored is not None else None
    return None if info is None or info.get("deleted") else info


def _subject(name: str) -> str:
    return f"{_DESCRIPTIONS}{base64.urlsafe_b64encode(name.encode()).decode()}"


def _digest(payload: bytes) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(payload).digest()).decode()
