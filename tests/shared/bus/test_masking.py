"""An event that some callers get masked has two forms, and a reader must ask for the whole one."""

from __future__ import annotations

import orjson
import pytest

from penstock.bus import masking, sealing
from penstock.bus.messages import SEQUENCE, Message, Stored
from penstock.bus.sealing import FIRST_BYTES, OPENED, RunKey, RunKeys

RUN_ID = "01a1f8c3-1007-77dc-be51-6f2ae3b9b92e"
SUBJECT = f"llm.stream.{RUN_ID}"
ENVELOPE = {
    **{"run_id": RUN_ID, "sequence": 3, "source": None},
    **{"event": {"category": "llm", "action": "stream"}, "data": {"content": "To [EMAIL_1]"}},
    **{"session_id": "s", "leg": 1},
}
CLEAR = {"content": 'To joe@example.com, "clear":{"masked":1}'}
BOTH = orjson.dumps(masking.with_both(ENVELOPE, CLEAR))


def stored(payload: bytes, subject: str = SUBJECT) -> Stored:
    return Stored(subject, 7, {SEQUENCE: "3"}, payload)


def test_a_reader_gets_the_masked_form_as_if_there_was_no_other() -> None:
    event = stored(BOTH)
    masking.split(event)
    assert event.payload == orjson.dumps(ENVELOPE)
    assert orjson.loads(masking.whole(event)) == {**ENVELOPE, "data": CLEAR}
    assert list(orjson.loads(masking.whole(event))) == list(ENVELOPE), "the fields keep their order"


def test_an_event_without_masks_is_whole_and_what_an_agent_server_sends_stays_as_it_is() -> None:
    plain, frame = stored(orjson.dumps(ENVELOPE)), stored(BOTH, f"rawp.3.{RUN_ID}.upstream")
    for each in (plain, frame):
        before = each.payload
        masking.split(each)
        assert each.payload == masking.whole(each) == before


@pytest.mark.parametrize("broken", [BOTH[:-1], masking.MARK + b'"data":{}}', BOTH[:40]])
def test_of_an_event_that_cannot_be_read_nobody_gets_anything(broken: bytes) -> None:
    event = stored(broken)
    masking.split(event)
    assert event.payload == masking.masked(broken) == masking.whole(event) == b""


def test_both_forms_are_sealed_together_and_opened_again() -> None:
    key = RunKey(b"k" * 32)
    place = sealing.place_of(SUBJECT, BOTH)
    assert place is not None
    sealed = sealing.sealed_message(key, place, Message(SUBJECT, BOTH, {SEQUENCE: "3"}))
    assert b"joe" not in sealed.payload
    assert b"EMAIL" not in sealed.payload
    assert sealing.open_message(RunKeys(key), place, stored(sealed.payload)) == BOTH
    again = sealing.sealed_event(key, BOTH)
    assert sealing.open_message(RunKeys(key), place, stored(again)) == BOTH


def test_readers_open_what_is_masked() -> None:
    assert BOTH[:FIRST_BYTES] in OPENED
    assert orjson.dumps(ENVELOPE)[:FIRST_BYTES] not in OPENED
