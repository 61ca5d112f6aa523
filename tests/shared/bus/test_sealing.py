"""Content is opened byte for byte as it was sealed, and in no other place than its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus import messages, sealing, subjects
from penstock.bus.errors import ContentErased, ContentRefused
from penstock.bus.messages import Message, Stored, header_lines
from penstock.bus.sealing import KeyMissing, MasterKeys, RunKey, RunKeys
from penstock.bus.write import objects
from penstock.events import parse
from penstock.events.catalogue import CATALOGUE
from penstock.events.examples import example
from support.drive.bus import new_run_id

KEY = RunKey(bytes(range(32)))
KEYS = RunKeys(KEY)
RUN = "01a1f8cf-043f-712a-9f47-41bd92fed9db"
FIRST, SECOND = "first key of the operator, 32 bytes", "second key of the operator, 32 bytes"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def sealed(message: Message) -> Stored:
    """Return the message as a stream holds it after it was sealed."""
    place = sealing.place_of(message.subject, message.payload)
    assert place is not None
    made = sealing.sealed_message(KEY, place, message)
    assert sealing.is_sealed(place, made.payload)
    assert made.payload[: sealing.FIRST_BYTES] in sealing.SEALED
    headers = made.headers
    if isinstance(headers, bytes):
        headers = dict(line.split(": ", 1) for line in headers.decode().split("\r\n") if line)
    return Stored(made.subject.removeprefix("shard.3."), 7, headers, made.payload)


def opened(stored: Stored, keys: RunKeys = KEYS) -> bytes:
    place = sealing.place_of(stored.subject, stored.payload)
    assert place is not None
    return sealing.open_message(keys, place, stored)


def event(data: Any, sequence: int = 3, **envelope: Any) -> Message:
    body = {
        **{"run_id": RUN, "timestamp": "2026-11-27T11:00:00.000Z", "sequence": sequence},
        **{"source": {"agent_id": 'a","data":{"x"', "agent_name": "A"}},
        **{"event": {"category": "llm", "action": "stream"}, "data": data},
        **{"session_id": "s", "leg": 1},
        **envelope,
    }
    headers = header_lines({messages.SEQUENCE: f"{sequence}", "ce-type": "llm.stream"})
    return Message(subjects.event_input("llm.stream", RUN), orjson.dumps(body), headers)


@given(st.dictionaries(st.text(), json_values))
def test_an_event_is_opened_byte_for_byte(data: dict[str, Any]) -> None:
    message = event(data)
    assert opened(sealed(message)) == message.payload


@pytest.mark.parametrize("type_", sorted(CATALOGUE.keys() - {"system.erased"}))
def test_the_envelope_of_a_sealed_event_is_readable_and_its_data_is_not(type_: str) -> None:
    body = example(type_)
    headers = {messages.SEQUENCE: f"{body.sequence}"}
    stored = sealed(Message(subjects.event_input(type_, body.run_id), body.dump(), headers))
    shown = parse(stored.payload)
    assert list(shown.data) == ["sealed"]
    for field in ("run_id", "timestamp", "sequence", "source", "event", "session_id", "leg"):
        assert getattr(shown, field) == getattr(body, field)
    assert opened(stored) == body.dump()


def frame(run_id: str = RUN, writer: str = "upstream", index: int = 4, part: str = "") -> Message:
    headers = {messages.KIND: "bytes", messages.LEG: "1", messages.INDEX: f"{index}"}
    headers |= {messages.PART: part} if part else {}
    return Message(subjects.raw(run_id, writer), b"data: the secret\n\n", headers)


@pytest.mark.parametrize(
    "message",
    [
        frame(),
        Message(f"command.connector.start.{RUN}", b"{}", {}),
        Message(f"journal.{RUN}", b"[]", {"Penstock-Record": "1"}),
        Message(f"journal.{RUN}.abc", b"[]", {messages.PART: "1/2"}),
        Message(f"deadletter.edge.{RUN}", b"{}", {}),
        Message(f"delivery.rule.{RUN}-12", b"{}", {}),
        Message(f"$KV.pauses.{RUN}", b"{}", {}),
        Message(f"$KV.threads.input.{RUN}", b"{}", {}),
        Message(f"$KV.threads.thread.{'0' * 64}", b"{}", {}),
        Message(f"$KV.deliveries.run.rule.{RUN}-12", b"{}", {}),
        Message(f"$KV.claims.active.pod-1.{RUN}", b"{}", {}),
        Message(f"llm.stream.{RUN}", b"no event", {messages.SEQUENCE: "1"}),
        Message(f"shard.3.llm.stream.{RUN}", b"no event", {messages.SEQUENCE: "1"}),
    ],
    ids=lambda message: message.subject[:12],
)
def test_a_message_is_opened_where_the_stream_holds_it(message: Message) -> None:
    assert opened(sealed(message)) == message.payload


def test_a_frame_is_opened_in_its_partition() -> None:
    stored = replace(sealed(frame()), subject=f"rawp.11.{RUN}.upstream")
    assert opened(stored) == frame().payload


def test_a_scheduled_message_is_opened_when_it_is_due() -> None:
    stored = sealed(Message(f"schedule.automations.rule.{RUN}-3", b"job", {}))
    stored.subject = f"due.automations.rule.{RUN}-3"
    assert opened(stored) == b"job"


@pytest.mark.parametrize(
    "subject",
    [
        *("audit.{}", "key.{}", "control.{}", "$KV.runs.{}", "$KV.threads.{}", "$JS.API.INFO"),
        *("deadletter.automations.hook-1", "delivery.rule.hook-1", "schedule.approvals.{}"),
        *("command.penstock.skipped.nobody", "$KV.deliveries.run.rule.hook-1"),
        *("system.erased.{}", "command.normalizer.erase.{}"),
    ],
)
def test_what_has_no_content_or_no_run_is_not_sealed(subject: str) -> None:
    assert sealing.place_of(subject.format(RUN), b"{}") is None


OTHER = new_run_id()
SWAPS: dict[str, Callable[[Stored], Stored]] = {
    "another sequence": lambda it: replace(it, headers={**it.headers, messages.SEQUENCE: "4"}),
    "another type": lambda it: replace(it, subject=f"llm.message_completed.{RUN}"),
    "another run": lambda it: replace(it, subject=f"llm.stream.{OTHER}"),
    "another time": lambda it: replace(it, payload=it.payload.replace(b"11:00:00", b"11:00:01")),
    "another leg": lambda it: replace(it, payload=it.payload.replace(b'"leg":1', b'"leg":2')),
}


@pytest.mark.parametrize("swap", SWAPS)
def test_an_events_content_is_refused_in_another_place(swap: str) -> None:
    stored = SWAPS[swap](sealed(event({"text": "secret"})))
    with pytest.raises(ContentRefused, match="changed, or was sealed for another message"):
        opened(stored)


def test_the_content_of_one_event_is_refused_in_the_envelope_of_another() -> None:
    one, two = sealed(event({"n": 1}, 3)), sealed(event({"n": 2}, 4))
    begin = one.payload.index(b'"data":')
    two.payload = two.payload[: two.payload.index(b'"data":')] + one.payload[begin:]
    with pytest.raises(ContentRefused):
        opened(two)


@pytest.mark.parametrize(
    "other",
    [frame(OTHER), frame(writer="edge"), frame(index=5), frame(part="1/2")],
    ids=["run", "writer", "index", "part"],
)
def test_a_frame_is_refused_in_another_place(other: Message) -> None:
    stored = sealed(frame())
    assert not isinstance(other.headers, bytes)
    with pytest.raises(ContentRefused):
        opened(replace(stored, subject=other.subject, headers=other.headers))


@pytest.mark.parametrize("at", [-1, 30, 14])
def test_a_changed_byte_is_refused(at: int) -> None:
    stored = sealed(frame())
    changed = bytearray(stored.payload)
    changed[at] ^= 1
    with pytest.raises(ContentRefused):
        opened(replace(stored, payload=bytes(changed)))


@pytest.mark.parametrize(
    "payload", [b'{"sealed":1,', b'{"sealed":1,"data":{"sealed":"!"}}', b"\x00PSC\x01" + KEY.id]
)
def test_what_only_looks_sealed_is_refused(payload: bytes) -> None:
    with pytest.raises(ContentRefused):
        opened(Stored(f"llm.stream.{RUN}", 1, {messages.SEQUENCE: "1"}, payload))


def test_content_of_a_destroyed_key_is_erased_and_not_refused() -> None:
    for key in (None, RunKey(bytes(32))):
        with pytest.raises(ContentErased, match="its key is destroyed"):
            opened(sealed(frame()), RunKeys(key, frozenset([KEY.id])))
        with pytest.raises(ContentRefused, match="no key of its run"):
            opened(sealed(frame()), RunKeys(key))


def test_the_reference_to_a_large_event_stays_json() -> None:
    place = sealing.place_of(f"llm.stream.{RUN}", b"")
    assert place is not None
    assert not sealing.has_content(place, objects.reference(f"{RUN}.3"))
    assert sealing.has_content(
        place, event({"text": objects.reference(f"{RUN}.3").decode()}).payload
    )


def test_a_large_event_is_sealed_as_a_message_is_and_the_same_each_time() -> None:
    message = event({"text": ',"data":{},"session_id":' * 2})
    made = [sealing.sealed_event(KEY, message.payload) for _ in range(2)]
    assert made[0] == made[1]
    found = sealed(message)
    found.payload = made[0]
    assert opened(found) == message.payload


@pytest.mark.parametrize("payload", [b"", b"{}", b'{"a":1,"data":{},"session_id":"s"}', b"[1]"])
def test_what_is_no_event_is_not_sealed_as_a_large_event(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"no event|unexpected|JSON"):
        sealing.sealed_event(KEY, payload)


@pytest.mark.parametrize("subject", [f"journal.{RUN}.{'0' * 64}", f"raw.{RUN}.upstream"])
def test_content_that_begins_as_a_sealed_event_does_is_in_clear(subject: str) -> None:
    place = sealing.place_of(subject, b"")
    assert place is not None
    assert not sealing.is_sealed(place, b'{"sealed":1,"by":"a workflow"}')


def test_an_object_is_sealed_the_same_each_time_and_opened_under_its_name() -> None:
    made = [sealing.seal_object(KEY, RUN, f"{RUN}.3", b"content") for _ in range(2)]
    assert made[0] == made[1]
    assert b"content" not in made[0]
    assert made[0] != sealing.seal_object(KEY, RUN, f"{RUN}.4", b"content")
    assert sealing.run_of_object(made[0]) == RUN
    assert sealing.run_of_object(b'{"run_id":""}') is None
    assert sealing.open_object(KEYS, f"{RUN}.3", made[0]) == b"content"
    with pytest.raises(ContentRefused):
        sealing.open_object(KEYS, f"{RUN}.4", made[0])


ITEM = {"item_id": "1", "kind": "confirm", "tool": "pay", "args": {"to": "SECRET"}}
DECIDED = {"item_id": "1", "decision": "approve", "note": "SECRET", "args": {"to": "SECRET"}}
RECORDS: dict[str, dict[str, Any]] = {
    f"$KV.runs.{RUN}": {
        **{"run_id": RUN, "agent": "a", "session_id": "s", "user_id": "u", "status": "failed"},
        **{"message": "SECRET", "summary": "SECRET", "error": "SECRET", "tags": {"t": "SECRET"}},
        **{"unredacted": {"error": "SECRET"}, "created_at": "c", "updated_at": "u"},
    },
    "$KV.approvals.a1": {
        **{"approval_id": "a1", "run_id": RUN, "digest": "d", "items": [ITEM], "reason": "SECRET"},
        "decision": {"outcome": "approved", "by": "ada", "note": "SECRET", "items": [DECIDED]},
        "votes": [{"by": "ada", "note": "SECRET", "items": [DECIDED]}],
        "remarks": [{"kind": "question", "by": "ada", "text": "SECRET"}],
        "rulings": [{"item_id": "1", "rule_id": "r", "note": "SECRET"}],
    },
    f"$KV.deliveries.rule.{RUN}-3": {
        **{"id": "1", "rule": "rule", "run_id": RUN, "answer": "SECRET", "job": {"x": "SECRET"}},
        "attempts": [{"number": 1, "at": "a", "text": "SECRET", "headers": {"x": "SECRET"}}],
    },
}


@pytest.mark.parametrize("subject", RECORDS)
def test_a_record_keeps_what_lists_need_and_an_erased_one_is_still_a_record(subject: str) -> None:
    payload = orjson.dumps(RECORDS[subject])
    stored = sealed(Message(subject, payload, {}))
    assert b"SECRET" not in stored.payload
    assert opened(stored) == payload
    erased = orjson.loads(opened(stored, RunKeys(None, frozenset([KEY.id]))))
    clear = orjson.loads(stored.payload)
    del clear["sealed"], clear["content"]
    assert erased == clear
    assert erased["run_id"] == RUN
    for name, value in RECORDS[subject].items():
        if isinstance(value, str) and value != "SECRET":
            assert erased[name] == value
    # What has no content is stored as it is, so an erased record stays readable when it changes.
    again = Message(subject, orjson.dumps(erased), {})
    place = sealing.place_of(subject, again.payload)
    assert place is not None
    assert not sealing.has_content(place, again.payload)


def test_a_record_is_refused_under_another_key() -> None:
    stored = sealed(Message("$KV.approvals.a1", orjson.dumps(RECORDS["$KV.approvals.a1"]), {}))
    with pytest.raises(ContentRefused):
        opened(replace(stored, subject="$KV.approvals.a2"))


def test_the_first_key_of_the_operator_wraps_and_all_unwrap() -> None:
    before, both, after = MasterKeys([FIRST]), MasterKeys([SECOND, FIRST]), MasterKeys([SECOND])
    wrapped = before.wrap(RUN, RunKeys(KEY, frozenset([b"earlier!"])))
    assert KEY.secret not in wrapped
    assert both.unwrap(RUN, wrapped).destroyed == {b"earlier!"}
    assert before.is_current(wrapped)
    assert not both.is_current(wrapped)
    again = both.wrap(RUN, both.unwrap(RUN, wrapped))
    assert both.is_current(again)
    assert opened(sealed(frame()), after.unwrap(RUN, again)) == frame().payload
    with pytest.raises(
        KeyMissing,
        match=r"with the master key [0-9a-f]{8}, which PENSTOCK_CONTENT_KEYS does not have",
    ):
        after.unwrap(RUN, wrapped)
    with pytest.raises(KeyMissing, match="PENSTOCK_CONTENT_KEYS is not set to"):
        MasterKeys().unwrap(RUN, wrapped)


def test_the_key_of_one_run_is_none_for_another() -> None:
    masters = MasterKeys([FIRST])
    with pytest.raises(ContentRefused):
        masters.unwrap(OTHER, masters.wrap(RUN, KEYS))
    with pytest.raises(ContentRefused):
        masters.unwrap(RUN, b"{}")


def test_who_changes_since_when_a_run_is_sealed_makes_its_key_unreadable() -> None:
    masters = MasterKeys([FIRST])
    wrapped = masters.wrap(RUN, KEYS._replace(since=0.0))
    assert masters.unwrap(RUN, wrapped, 7.5).since == 7.5  # the time of the message
    again = masters.wrap(RUN, masters.unwrap(RUN, wrapped, 7.5))
    assert masters.unwrap(RUN, again, 99.0).since == 7.5
    fields = orjson.loads(wrapped)
    for changed in ({**fields, "since": "8"}, {n: v for n, v in fields.items() if n != "since"}):
        with pytest.raises(ContentRefused):
            masters.unwrap(RUN, orjson.dumps(changed))


def test_none_as_the_first_key_only_opens() -> None:
    masters = MasterKeys(["none", FIRST])
    assert masters
    assert not masters.seals
    assert masters.unwrap(RUN, MasterKeys([FIRST]).wrap(RUN, KEYS)).key is not None


def test_a_destroyed_key_is_remembered_by_its_id_only() -> None:
    masters = MasterKeys([FIRST])
    gone = sealing.destruction(masters.wrap(RUN, KEYS))
    assert gone is not None
    assert masters.unwrap(RUN, gone) == RunKeys(None, frozenset([KEY.id]))
    assert MasterKeys().unwrap(RUN, gone).key is None
    assert sealing.destruction(gone) is None


def test_a_destroyed_key_says_which_key_of_the_operator_this_installation_has() -> None:
    before, both = MasterKeys([FIRST]), MasterKeys([SECOND, FIRST])
    gone = sealing.destruction(before.wrap(RUN, KEYS))
    assert gone is not None
    assert before.has_master_of(gone)
    for other in (MasterKeys(), MasterKeys([SECOND])):
        assert not other.has_master_of(gone)
    assert not both.is_current(gone)
    again = both.wrap(RUN, both.unwrap(RUN, gone))
    assert both.is_current(again)
    assert MasterKeys().unwrap(RUN, again) == RunKeys(None, frozenset([KEY.id]))
