"""The verification names the place of every change of the stored records of an audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_approvals.audit.chain import (
    Entry,
    Link,
    Malformed,
    anchor,
    canonical,
    chained,
    hash_of,
    link,
    loss_record,
    missing,
    parse,
)
from penstock_approvals.audit.verify import Verifier

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
AT = "2026-01-01T10:00:00.000Z"
Message = tuple[str, bytes]  # the chain, and the payload


def entry(number: int, event: Any = "voted") -> Entry:
    return Entry(approval_id="a1", event=event, at=AT, which=str(number), by="ada", roles=("boss",))


def chain(run_id: str, count: int, last: Link | None = None) -> list[Link]:
    links: list[Link] = []
    for _ in range(count):
        last = link(run_id, entry(1 if last is None else last.n + 1), last)
        links.append(last)
    return links


def messages(run_id: str, links: Sequence[Link]) -> list[Message]:
    return [(run_id, each.payload) for each in links]


def heads(*links: Link) -> dict[str, tuple[int, str]]:
    return {str(each.record["run_id"]): (each.n, each.hash) for each in links}


def anchored(*links: Link, last: Link | None = None, keys: Sequence[bytes] = ()) -> Link:
    return anchor(heads(*links), 100, at=AT, day="2026-01-01", last=last, keys=keys)


def verified(stored: Sequence[Message], **expected: Any) -> list[str]:
    verifier = Verifier(**expected)
    for sequence, (name, payload) in enumerate(stored, 1):
        verifier.take(name, payload, sequence)
    return [str(each) for each in verifier.findings()]


def intact() -> list[Message]:
    """Return two runs with three records each, an anchor, a further record, and another anchor."""
    one, two = chain("r1", 3), chain("r2", 3)
    first = anchored(one[-1], two[-1])
    more = chain("r1", 1, one[-1])
    second = anchored(more[-1], last=first)
    return [
        *messages("r1", one),
        *messages("r2", two),
        ("anchor", first.payload),
        *messages("r1", more),
        ("anchor", second.payload),
    ]


def with_change(payload: bytes, **change: Any) -> bytes:
    return canonical({**json.loads(payload), **change})


def rewritten(payload: bytes, **change: Any) -> bytes:
    """Return the record with a change, and with the correct hash of the changed record."""
    record = {**json.loads(payload), **change}
    del record["hash"]
    return Link(record["n"], hash_of(record), record).payload


def test_an_untouched_audit_has_no_findings() -> None:
    assert verified(intact()) == []


def test_a_hash_is_made_of_the_hash_before_it_and_the_canonical_record() -> None:
    first, second = chain("r1", 2)
    assert first.record["prev"] == "0" * 64
    assert (second.n, second.record["prev"]) == (2, first.hash)
    assert parse(second.payload).shown() == json.loads(second.payload)
    assert second.payload == (
        b'{"approval_id":"a1","at":"2026-01-01T10:00:00.000Z","by":"ada","event":"voted","hash":"'
        + second.hash.encode()
        + b'","key":"a1.voted.2","n":2,"prev":"'
        + first.hash.encode()
        + b'","roles":["boss"],"run_id":"r1"}'
    )


@given(st.data())
def test_every_changed_byte_is_found(data: st.DataObject) -> None:
    stored = intact()
    number = data.draw(st.integers(0, len(stored) - 1))
    name, payload = stored[number]
    place = data.draw(st.integers(0, len(payload) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda each: each != payload[place]))
    stored[number] = name, payload[:place] + bytes([byte]) + payload[place + 1 :]
    found = verified(stored)
    assert found
    assert f"(stream sequence {number + 1})" in found[0]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, "run r1, record 3: record 2 is missing before it (stream sequence 2)"),
        (0, "run r1, record 2: record 1 is missing before it (stream sequence 1)"),
        (2, "run r1: its end was cut after record 2: anchor 1 names record 3"),
        (7, "run r1: its end was cut after record 3: anchor 2 names record 4"),
        (6, "the anchors, record 2: record 1 is missing before it (stream sequence 8)"),
    ],
)
def test_a_removed_record_is_found(number: int, expected: str) -> None:
    stored = intact()
    del stored[number]
    assert verified(stored)[0] == expected


def test_a_removed_run_is_found_by_an_anchor() -> None:
    stored = [each for each in intact() if each[0] != "r2"]
    assert verified(stored) == ["run r2: all its records were removed: anchor 1 names record 3"]


def test_an_inserted_record_is_found() -> None:
    stored = intact()
    forged = link("r1", entry(9, "decided"), chain("r1", 1)[0])
    assert verified([*stored[:2], ("r1", forged.payload), *stored[2:]]) == [
        "run r1, record 2: it was inserted: there is a record 2 before it (stream sequence 3)"
    ]
    # # the forger replaces the record, so the next record no longer matches
    assert verified([stored[0], ("r1", forged.payload), *stored[2:]])[0] == (
        "run r1, record 3: it does not follow record 2: one of the two was replaced "
        "(stream sequence 3)"
    )


def test_a_chain_that_was_written_anew_is_found_by_the_anchor() -> None:
    stored = intact()
    forged: Link | None = None
    for number in range(3):
        record = {**json.loads(stored[number][1]), "by": "eve"}
        for member in ("hash", "n", "prev"):
            del record[member]
        forged = chained(record, forged)
        stored[number] = "r1", forged.payload
    assert verified(stored)[0] == (
        "run r1, record 3: it was replaced: anchor 1 names record 3 with another hash"
    )


def test_a_record_of_another_run_is_found() -> None:
    assert verified(messages("r1", chain("r2", 2)))[0] == (
        "run r1, record 1: it was written for another chain (stream sequence 1)"
    )


def test_anchors_that_were_written_anew_are_found_by_a_hash_that_was_kept_elsewhere() -> None:
    stored = intact()
    kept = json.loads(stored[-1][1])["hash"]
    assert verified(stored, anchor=kept) == []
    one = chain("r1", 2)  # the forger cuts both runs and writes a matching anchor
    forged = [*messages("r1", one), ("anchor", anchored(one[-1]).payload)]
    assert verified(forged) == []
    assert verified(forged, anchor=kept) == [
        f"the anchors: there is no anchor {kept}: the anchors were cut, or written anew since this "
        "hash was copied"
    ]


def test_anchors_that_were_written_anew_are_found_by_their_signature() -> None:
    one = chain("r1", 2)
    before = anchored(one[0])
    signed = anchored(one[1], last=before, keys=[KEY, OTHER_KEY])
    honest = [*messages("r1", one), ("anchor", before.payload), ("anchor", signed.payload)]
    # An anchor from before the key was set is covered by the signed anchor that follows it.
    assert verified(honest, keys=[KEY]) == []
    assert verified(honest, keys=[OTHER_KEY, KEY]) == []
    assert verified(honest, keys=[OTHER_KEY]) == ["the anchors: no anchor is signed with this key"]
    forged = [*messages("r1", one[:1]), ("anchor", anchored(one[0]).payload)]
    assert verified(forged, keys=[KEY]) == ["the anchors: no anchor is signed with this key"]
    appended = anchored(one[0], last=signed, keys=[OTHER_KEY])
    assert verified([*honest, ("anchor", appended.payload)], keys=[KEY]) == [
        "the anchors, record 3: it is not signed with this key, and an earlier anchor is"
    ]


def test_a_loss_that_the_anchors_name_is_reported_and_is_no_finding() -> None:
    one = chain("r1", 2)
    first = anchored(one[-1])
    lost = loss_record(3, 9, AT, at=AT, last=first, keys=())
    verifier = Verifier()
    for name, payload in [
        *messages("r1", one),
        ("anchor", first.payload),
        ("anchor", lost.payload),
    ]:
        verifier.take(name, payload, 1)
    assert verifier.findings() == []
    assert verifier.losses == [f"NATS lost the records of the stream sequences 3 to 9 (found {AT})"]
    assert (verifier.runs, verifier.records, verifier.anchors, verifier.head) == (
        1,
        2,
        2,
        lost.hash,
    )


def test_one_run_is_verified_alone() -> None:
    stored = [each for each in intact() if each[0] != "r1"]
    assert verified(stored, only="r2") == []
    assert verified([each for each in intact() if each[0] == "anchor"], only="r2") == [
        "run r2: all its records were removed: anchor 1 names record 3"
    ]


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"1", b"{}", b"\xff", b"[" * 100_000, b'{"n":1,"prev":"","hash":""}'],
)
def test_a_message_that_is_no_record_is_refused(payload: bytes) -> None:
    with pytest.raises(Malformed):
        parse(payload)
    assert verified([("r1", payload)])[0].startswith("run r1, record 1: ")


def test_the_same_content_in_another_form_is_refused() -> None:
    (one,) = chain("r1", 1)
    with pytest.raises(Malformed, match="not the form"):
        parse(one.payload.replace(b",", b", ", 1))


@pytest.mark.parametrize(
    "heads_", [{"r1": [1]}, {"r1": ["x", "y"]}, {"r1": 5}, [], 1, {"r1": [10**30, "x"]}]
)
def test_an_anchor_with_other_content_is_a_finding_and_no_error(heads_: Any) -> None:
    (one,) = chain("r1", 1)
    made = chained({"event": "anchor", "heads": heads_}, None)
    assert verified([("r1", one.payload), ("anchor", made.payload)])


def test_what_is_in_the_chain_already_is_not_missing() -> None:
    links = chain("r1", 3)
    assert missing(links, [entry(1), entry(7), entry(2)]) == [entry(7)]


@given(st.integers(1, 6), st.data())
def test_a_shuffled_chain_is_found(count: int, data: st.DataObject) -> None:
    links = messages("r1", chain("r1", count))
    order = data.draw(st.permutations(links))
    assert bool(verified(order)) == (list(order) != links)
