"""Seals the content of messages with the key of their run, and opens it. Pure, except for random
numbers.

The subject of a message says whether the message is sealed, and for which run (`place_of`). A
sealed message has one of these forms:

- An event stays JSON. Its envelope is readable, and its `data` is `{"sealed": "<base64>"}`. So a
  reader without keys sees what happened and when, and not what was said.
- A record that lists read keeps its other fields (see `envelopes`), and has the whole record as
  `content`. If its key is destroyed, the other fields are the record.
- Any other payload becomes `_WHOLE` and ciphertext.
- An object of the object store becomes `_OBJECT`, the id of its run, and ciphertext.

Ciphertext is the id of the run's key, a nonce, and what AES-256-GCM makes of the content. The
subject, the headers that give a message its place, and an event's envelope are authenticated. So
content that was changed, or was put into another message, is refused. So is content that somebody
has stored in clear after the key of its run was made (`RunKeys.since`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from penstock.bus import masking, messages
from penstock.bus.envelopes import ENVELOPES, Fields
from penstock.bus.errors import BusUnavailable, ContentErased, ContentRefused
from penstock.bus.messages import Message, Stored, Unreadable
from penstock.bus.subjects import CATEGORIES, SHARD, is_run_id, run_id_of

if TYPE_CHECKING:  # at run time only where there are keys
    from penstock.bus.ciphers import Cipher

SETTING: Final = "PENSTOCK_CONTENT_KEYS"
# As the first key: this process seals nothing, and opens what is sealed. As the last key: it seals,
# and also takes content in clear, since not all services seal yet.
NONE: Final = "none"
KEY_BYTES: Final = 32
_KEY_ID_BYTES: Final = 8
_RUN_ID_BYTES: Final = 36

# The beginnings of sealed payloads, with the version of their form. JSON never begins with a zero.
_WHOLE: Final = b"\x00PSC\x01"
_OBJECT: Final = b"\x00PSO\x01"
_EVENT: Final = b'{"sealed":1,'
_MARKS: Final = (_EVENT, _WHOLE)
# The first bytes of sealed messages. A reader compares them before it calls anything, so that clear
# messages cost next to nothing.
FIRST_BYTES: Final = 5
SEALED: Final = frozenset(mark[:FIRST_BYTES] for mark in _MARKS)
OPENED: Final = SEALED | {masking.MARK[:FIRST_BYTES]}  # those of all messages that are opened

# Where `data` begins and ends in an event (see the normalizer's `canonical_event`). A quotation
# mark within a text is escaped, so these bytes are no part of a text.
_DATA: Final = b',"data":'
_AFTER_DATA: Final = b',"session_id":'
_SEALED_DATA: Final = b',"data":{"sealed":"'
_AFTER_SEALED: Final = b'"}'
_SEQUENCE_LINE: Final = b"%b: " % messages.SEQUENCE.encode()
# The headers that give a message its place among the messages of its subject. NATS keeps them.
_PLACING: Final = (
    *(messages.KIND, messages.LEG, messages.CONNECTION, messages.INDEX, messages.RECEIVED),
    *(messages.PART, messages.WHOLE, messages.SEQUENCE, "Penstock-Record"),
)


class Place(NamedTuple):
    """Where a message belongs: its run, its name, which is authenticated, and its form."""

    run_id: str
    name: bytes
    is_event: bool = False
    envelope: Callable[[Fields], Fields] | None = None  # of a record that lists read


def _event(subject: str, rest: str) -> Place | None:
    # What is left of a run whose key is destroyed is no content.
    if subject.startswith("system.erased."):
        return None
    return Place(rest.rpartition(".")[2], subject.encode(), is_event=True)


def _frame(_: str, rest: str) -> Place:
    # RAW stores `raw.<run>.<writer>` as `rawp.<partition>.<run>.<writer>`.
    run_id, writer = rest.split(".")[-2:]
    return Place(run_id, f"raw.{run_id}.{writer}".encode())


def _message(subject: str, _: str) -> Place | None:
    # An erasure that is repeated after a kill is read when the key of its run is destroyed.
    if subject.startswith("command.normalizer.erase."):
        return None
    return Place(run_id_of(subject), subject.encode())


def _scheduled(_: str, rest: str) -> Place:
    # The server publishes the payload of `schedule.<rest>` to `due.<rest>`.
    return Place(run_id_of(f"due.{rest}"), f"due.{rest}".encode())


def _record(subject: str, payload: bytes) -> Place | None:
    for beginning, run_of in _RECORDS.items():
        if subject.startswith(beginning):
            return Place(run_of(subject.rpartition(".")[2]), subject.encode())
    _, bucket, key = subject.split(".", 2)
    envelope = ENVELOPES.get(bucket)
    if envelope is None or key.count(".") != (bucket == "deliveries"):
        return None  # other kinds of keys have no content
    if bucket == "deliveries":
        run_id = run_id_of(f"delivery.{key}")
    else:
        named = _RUN_OF_RECORD.search(payload)
        run_id = named[1].decode() if named is not None else ""
    return Place(run_id, subject.encode(), envelope=envelope)


def conversation_of(session_key: str) -> str:
    """Return what stands for a run where the conversation of a session is sealed. It is of several
    runs, so it has a key of its own, which the erasure of each of these runs destroys."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, session_key))


_RUN_OF_RECORD: Final = re.compile(rb'"run_id":"([0-9a-f-]{36})"')
_BUCKETS: Final = "$KV."
# The records that are sealed as a whole: the beginnings of their subjects, and which run the last
# token names.
_RECORDS: Final[Mapping[str, Callable[[str], str]]] = {
    "$KV.pauses.": str,
    "$KV.claims.active.": str,
    "$KV.threads.input.": str,
    "$KV.threads.run.": str,
    "$KV.threads.thread.": conversation_of,
    # What a rule starts a run with. The run is that of the rule's event.
    "$KV.deliveries.run.": lambda key: run_id_of(f"delivery.{key}"),
}
# What is sealed, by the first token of the subject.
_PLACES: Final[Mapping[str, Callable[[str, str], Place | None]]] = {
    **dict.fromkeys(CATEGORIES, _event),
    "raw": _frame,
    "rawp": _frame,
    "command": _message,
    "journal": _message,
    "deadletter": _message,
    "delivery": _message,
    "schedule": _scheduled,
    "due": _scheduled,
}


def is_sealed(place: Place, payload: bytes) -> bool:
    """Return whether the payload has a form in which messages of this place are sealed. Other
    content may begin as a sealed event does, such as a value of a workflow."""
    return payload.startswith(_MARKS if place.is_event or place.envelope else _WHOLE)


def has_content(place: Place, payload: bytes) -> bool:
    """Return whether a payload must be sealed. A record without content is stored as it is, so that
    the record of an erased run gets no new key. So is the reference to a large event, since every
    message of EVENTS is JSON; the event itself is sealed."""
    if place.is_event:
        return not payload.startswith(messages.REFERENCE)
    if place.envelope is None:
        return True
    try:
        fields: Fields = orjson.loads(payload)
        return bool(place.envelope(fields) != fields)
    except (ValueError, TypeError, AttributeError, LookupError):
        return True  # it is no record, and somebody else has written it


def refers_elsewhere(place: Place, payload: bytes) -> bool:
    """Return whether an event refers to an object that is not of its run."""
    own = messages.REFERENCE + place.run_id.encode() + b"."
    return payload.startswith(messages.REFERENCE) and not payload.startswith(own)


def place_of(subject: str, payload: bytes) -> Place | None:
    """Return where a message belongs; None if it is not sealed, because messages of this subject
    have no content or belong to no run."""
    if subject.startswith(_BUCKETS):
        place = _record(subject, payload)
        return place if place is not None and is_run_id(place.run_id) else None
    return _place_in_stream(subject)


# Kept, since a run has many messages of few subjects.
@lru_cache(maxsize=8192)
def _place_in_stream(subject: str) -> Place | None:
    first, _, rest = subject.partition(".")
    if first == SHARD:
        subject = rest.partition(".")[2]
        first, _, rest = subject.partition(".")
    find = _PLACES.get(first)
    place = find(subject, rest) if find is not None else None
    return place if place is not None and is_run_id(place.run_id) else None


class RunKey:
    """The key of one run's content."""

    __slots__ = ("id", "open", "seal", "secret")

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        self.id = _fingerprint(secret, _KEY_ID_BYTES)
        # The methods of the cipher themselves, since each frame is sealed and opened twice.
        made = cipher(secret, self.id)
        self.seal, self.open = made.encrypt, made.decrypt

    def fixed_nonce(self, content: bytes, name: bytes) -> bytes:
        """Return a nonce that is the same for the same content and name, and for no other."""
        parts = (self.secret, len(name).to_bytes(8, "big"), name, content)
        return hashlib.sha256(b"".join(parts)).digest()


class KeyUnknown(ContentRefused):
    """The content is sealed with a key that is none of its run, as far as this process knows."""


class RunKeys(NamedTuple):
    """The present key of a run, if it has one, and the ids of its keys that were destroyed.

    `since` is when the key was made, in seconds since 1970: later content in clear is refused. It
    is None if the key was made while not all services sealed.
    """

    key: RunKey | None = None
    destroyed: frozenset[bytes] = frozenset()
    since: float | None = None

    def open(self, sealed: bytes, name: bytes) -> bytes:
        """Return the content that was sealed under this name. Raises ContentErased if its key was
        destroyed, and ContentRefused if it was changed or is from another place."""
        key_id = sealed[:_KEY_ID_BYTES]
        if key_id in self.destroyed:
            raise ContentErased("the content was erased: its key is destroyed")
        if self.key is None or key_id != self.key.id:
            raise KeyUnknown(
                f"the content is sealed with the key {key_id.hex()}, which is no key of its run: "
                "it was put here from another run, or NATS has lost the key"
            )
        try:
            return self.key.open(sealed, name)
        except ValueError:
            raise ContentRefused(
                "the sealed content was changed, or was sealed for another message"
            ) from None


def sealed_message(key: RunKey, place: Place, message: Message) -> Message:
    subject, payload, headers = message
    sealed = None
    if place.is_event:
        sealed = _sealed_event(key, place, _sequence(headers), payload)
    elif place.envelope is not None:
        sealed = _sealed_record(key, place, payload)
    if sealed is None:
        sealed = _WHOLE + key.seal(payload, _name(place, _parsed(headers)))
    return Message(subject, sealed, headers)


def _sealed_event(
    key: RunKey, place: Place, sequence: bytes, payload: bytes, *, is_repeatable: bool = False
) -> bytes | None:
    begin, end = payload.find(_DATA), payload.rfind(_AFTER_DATA)
    if not 0 < begin < end:
        return None
    before, content, after = payload[:begin], payload[begin + len(_DATA) : end], payload[end:]
    name = b"\n".join((place.name, sequence, before, after))
    nonce = key.fixed_nonce(content, name) if is_repeatable else b""
    data = binascii.b2a_base64(key.seal(content, name, nonce), newline=False)
    return b"".join((_EVENT, before[1:], _SEALED_DATA, data, _AFTER_SEALED, after))


def sealed_event(key: RunKey, payload: bytes) -> bytes:
    """Return a large event as `sealed_message` would seal it if it was a message, and the same each
    time, since several processes may send parts of it. Raises ValueError if it is no event."""
    fields = orjson.loads(payload[: payload.find(_DATA)] + b"}")
    try:
        type_, run_id = fields["event"], fields["run_id"]
        subject = f"{type_['category']}.{type_['action']}.{run_id}"
        place = Place(run_id, subject.encode(), is_event=True)
        sequence = b"%d" % fields["sequence"]
        sealed = _sealed_event(key, place, sequence, payload, is_repeatable=True)
    except (KeyError, TypeError):
        sealed = None
    if sealed is None:
        raise ValueError("this is no event")
    return sealed


def _sealed_record(key: RunKey, place: Place, payload: bytes) -> bytes:
    assert place.envelope is not None
    fields = orjson.loads(payload)
    shown = place.envelope(fields)
    content = base64.b64encode(key.seal(payload, _name(place, {}))).decode()
    return orjson.dumps({"sealed": 1, **shown, "content": content})


def _open_record(keys: RunKeys, place: Place, payload: bytes) -> bytes:
    try:
        fields = orjson.loads(payload)
        content = binascii.a2b_base64(fields.pop("content"))
    except (ValueError, TypeError, KeyError):
        raise ContentRefused("the sealed record is no record") from None
    try:
        return keys.open(content, _name(place, {}))
    except ContentErased:
        return orjson.dumps(_without_mark(fields))


def _without_mark(fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if name != "sealed"}


def open_message(keys: RunKeys, place: Place, stored: Stored) -> bytes:
    """Return the content of a sealed message. Raises ContentErased and ContentRefused."""
    payload = stored.payload
    if payload.startswith(_WHOLE):
        return keys.open(payload[len(_WHOLE) :], _name(place, stored.headers))
    if place.envelope is not None:
        return _open_record(keys, place, payload)
    begin = payload.find(_SEALED_DATA)
    content_at = begin + len(_SEALED_DATA)
    end = payload.find(_AFTER_SEALED, content_at)
    if not 0 < begin < end:
        raise ContentRefused("the sealed event is no event")
    before, after = b"{" + payload[len(_EVENT) : begin], payload[end + len(_AFTER_SEALED) :]
    name = b"\n".join((place.name, _sequence(stored.headers), before, after))
    try:
        data = keys.open(binascii.a2b_base64(payload[content_at:end]), name)
    except binascii.Error:
        raise ContentRefused("the sealed event is not base64") from None
    return b"".join((before, _DATA, data, after))


def _name(place: Place, headers: Mapping[str, str]) -> bytes:
    placing = [f"\n{name}={headers[name]}" for name in _PLACING if name in headers]
    return place.name + "".join(placing).encode()


def _parsed(headers: Mapping[str, str] | bytes) -> Mapping[str, str]:
    """Return the headers of a message; of encoded ones, only the sequence, which events have."""
    if not isinstance(headers, bytes):
        return headers
    sequence = _sequence(headers)
    return {messages.SEQUENCE: sequence.decode()} if sequence else {}


def _sequence(headers: Mapping[str, str] | bytes) -> bytes:
    """Return the number of an event in its run, from its headers."""
    if not isinstance(headers, bytes):
        return headers[messages.SEQUENCE].encode() if messages.SEQUENCE in headers else b""
    begin = headers.find(_SEQUENCE_LINE)
    if begin < 0:
        return b""
    begin += len(_SEQUENCE_LINE)
    return headers[begin : headers.find(b"\r\n", begin)]


def seal_object(key: RunKey, run_id: str, name: str, content: bytes) -> bytes:
    """Return the sealed form of an object, which is the same for the same content, so that a writer
    that repeats itself finds the object."""
    bound = name.encode()
    sealed = key.seal(content, bound, key.fixed_nonce(content, bound))
    return _OBJECT + run_id.encode() + sealed


def run_of_object(content: bytes) -> str | None:
    """Return the run of a sealed object; None for an object that is not sealed."""
    if not content.startswith(_OBJECT):
        return None
    return content[len(_OBJECT) : len(_OBJECT) + _RUN_ID_BYTES].decode("ascii", "replace")


def open_object(keys: RunKeys, name: str, content: bytes) -> bytes:
    return keys.open(content[len(_OBJECT) + _RUN_ID_BYTES :], name.encode())


def unreadable(stored: Stored, error: ContentErased | ContentRefused) -> None:
    """Let every reader of the payload get the error, in place of content."""
    payload = Unreadable(messages.REFERENCE + b'unreadable"}')
    payload.error, payload.sealed = error, stored.payload
    stored.payload = payload


class KeyMissing(BusUnavailable):
    """Content is sealed, and this process lacks the master key of its run's key. Nothing is wrong
    with the message: it can be read when the operator has added the master key."""


class MasterKeys:
    """The operator's keys, which wrap the keys of runs: the first wraps, all unwrap."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        texts = tuple(texts)
        self.seals = bool(texts) and texts[0] != NONE
        self.refuses_clear = bool(texts) and NONE not in texts
        self._keys = {
            master_id(text): cipher(_master_secret(text)) for text in texts if text != NONE
        }

    def __bool__(self) -> bool:
        return bool(self._keys)

    def wrap(self, run_id: str, keys: RunKeys) -> bytes:
        """Return what KEYS stores for a run, whose key is wrapped by the first of these keys. Also
        a destroyed key names the first of these keys, so that `has_master_of` can tell."""
        master, wrapping = next(iter(self._keys.items()))
        fields: Fields = {
            "master": master,
            "destroyed": sorted(each.hex() for each in keys.destroyed),
        }
        if keys.key is not None:
            since = None if keys.since is None else str(keys.since)
            wrapped = wrapping.encrypt(keys.key.secret, _wrapped_as(run_id, since))
            fields |= {"id": keys.key.id.hex(), "key": base64.b64encode(wrapped).decode()}
            fields |= {"since": since} if since is not None else {}
        return orjson.dumps(fields)

    def unwrap(self, run_id: str, value: bytes, stored_s: float = 0.0) -> RunKeys:
        """Return the keys of a run, whose message was stored at `stored_s`. Raises KeyMissing, and
        ContentRefused if the value is not what `wrap` or `destruction` has made for this run."""
        try:
            fields = orjson.loads(value)
            destroyed = frozenset(map(bytes.fromhex, fields["destroyed"]))
            if "key" not in fields:
                return RunKeys(None, destroyed)
            master, wrapped = str(fields["master"]), base64.b64decode(fields["key"])
            text = fields.get("since")
            since = None if text is None else float(text) or stored_s
        except (ValueError, TypeError, KeyError) as error:
            raise ContentRefused(f"the key of run {run_id} is not what was stored") from error
        if (key := self._keys.get(master)) is None:
            raise KeyMissing(missing_text(master, bool(self)))
        try:
            secret = key.decrypt(wrapped, _wrapped_as(run_id, text))
        except ValueError:
            raise ContentRefused(f"the key of run {run_id} is not what was stored") from None
        return RunKeys(RunKey(secret), destroyed, since)

    def is_current(self, value: bytes) -> bool:
        """Return whether a stored key needs no rewrap."""
        return master_of(value) in ("", next(iter(self._keys), ""))

    def has_master_of(self, value: bytes) -> bool:
        master = master_of(value)
        return not master or master in self._keys


def _wrapped_as(run_id: str, since: str | None) -> bytes:
    """Return what is authenticated with a wrapped key, so that nobody else lets content in clear
    pass by changing the time."""
    return run_id.encode() if since is None else f"{run_id} {since}".encode()


def master_id(text: str) -> str:
    """Return the id of an operator's key, which KEYS has beside what the key wraps."""
    return _fingerprint(_master_secret(text), 4).hex()


def _master_secret(text: str) -> bytes:
    return hashlib.sha256(b"penstock content " + text.encode()).digest()


def master_of(value: bytes) -> str:
    """Return the id of the operator's key that wraps, or has wrapped, a key; empty if unknown."""
    try:
        return str(orjson.loads(value).get("master", ""))
    except (ValueError, AttributeError):
        return ""


def destruction(value: bytes) -> bytes | None:
    """Return what replaces a stored key that is destroyed; None if it was destroyed before."""
    try:
        fields = orjson.loads(value)
        if "key" not in fields:
            return None
        destroyed = sorted({*fields["destroyed"], str(fields["id"])})
        return orjson.dumps({"master": fields["master"], "destroyed": destroyed})
    except (ValueError, TypeError, KeyError):
        return orjson.dumps({"destroyed": []})  # somebody wrote over the key


def missing_text(master: str, has_keys: bool) -> str:
    has = "does not have" if has_keys else "is not set to"
    return (
        f"the content of this installation is sealed with the master key {master[:8]}, which "
        f"{SETTING} {has}: give every service the same keys (docs/privacy.md)"
    )


def cipher(secret: bytes, label: bytes = b"") -> Cipher:
    """Return a cipher with this key of 32 bytes (see `Cipher`). A process without keys imports no
    cryptography."""
    from penstock.bus.ciphers import Cipher  # noqa: PLC0415

    return Cipher(secret, label)


def _fingerprint(secret: bytes, size: int) -> bytes:
    return hashlib.sha256(b"penstock key id " + secret).digest()[:size]
