"""Subjects and keys: which names are allowed, and how the server maps them to partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.bus import Bus, Message, subjects
from penstock.bus.subjects import PARTITIONS, is_run_id, key_of, partition_of, run_id_of
from support.drive.bus import new_run_id


async def test_partition_of_is_where_the_server_puts_a_run(bus: Bus) -> None:
    seen = set()
    for run_id in (new_run_id() for _ in range(200)):
        await bus.publisher.publish(Message(subjects.raw(run_id, "upstream"), b"x", {}))
        stored = await bus.tail("RAW", subjects.raw_stored(run_id, "upstream"))
        assert stored is not None
        assert stored.subject == f"rawp.{partition_of(run_id)}.{run_id}.upstream"
        seen.add(partition_of(run_id))
    assert seen == set(range(PARTITIONS))


def test_a_run_id_is_one_subject_token() -> None:
    run_id = new_run_id()
    assert is_run_id(run_id)
    for not_one in [
        *["", "*", ">", "a.b", "run 1", run_id.upper(), run_id + "\n", run_id[:-1], run_id + "0"],
        *[run_id.replace("-", "."), "{" + run_id + "}", run_id.replace("-", "")],
    ]:
        assert not is_run_id(not_one), not_one


@given(st.sampled_from(".*> \t\r\n$_AZ"), st.integers(0, 36))
def test_nothing_that_is_no_part_of_a_token_gets_into_a_run_id(character: str, at: int) -> None:
    run_id = new_run_id()
    assert not is_run_id(run_id[:at] + character + run_id[at:])
    assert not is_run_id(run_id[:at] + character + run_id[at + 1 :])


def test_the_run_id_is_found_in_every_subject() -> None:
    run_id = new_run_id()
    for subject in [
        subjects.raw(run_id, "upstream"),
        subjects.frames(run_id, "edge"),
        f"rawp.3.{run_id}.approvals",
        subjects.event("llm.tool_call", run_id),
        subjects.command("connector", "start", run_id),
        subjects.deadletter("normalizer", run_id),
        subjects.control(run_id),
        subjects.journal(run_id),
        subjects.journal_value(run_id, "ab12"),
        subjects.due(subjects.WORKFLOWS, f"{run_id}.step.0"),
    ]:
        assert run_id_of(subject) == run_id


ids = st.lists(st.one_of(st.none(), st.text()), max_size=4)


@given(ids, ids)
def test_two_keys_are_equal_only_for_equal_ids(
    one: list[str | None], other: list[str | None]
) -> None:
    assert (key_of(*one) == key_of(*other)) == (one == other)


def test_ids_that_run_together_make_different_keys() -> None:
    keys = [
        key_of("ab", "c"),
        key_of("a", "bc"),
        key_of("abc"),
        key_of("a", "b", "c"),
        key_of("ab,c"),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(None) != key_of("null")


@given(ids)
def test_a_key_is_one_token_whatever_the_ids_hold(foreign: list[str | None]) -> None:
    key = key_of(*foreign)
    assert len(key) == 64
    assert set(key) <= set("0123456789abcdef")
