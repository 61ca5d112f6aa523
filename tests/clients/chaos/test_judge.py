"""Runs are counted as what they are, and the moments of kills are spread and repeatable."""

from __future__ import annotations

import pytest

from penstock_conformance.chaos.counter import Effect
from penstock_conformance.chaos.judge import Figures, Round, Seen, judge
from penstock_conformance.chaos.plan import moments
from penstock_conformance.chaos.protocols import PROTOCOLS
from penstock_conformance.chaos.protocols.base import Run, words_in

CALLS, WORDS = 2, 4
ALL = list(range(WORDS))


def judged(seen: Seen, *effects: int) -> Figures:
    played = Round("now", killed_s=10.0, answered_s=12.0, runs=[seen])
    made = [Effect(seen.run, call, 11.0) for call in effects]
    return judge([played], made, calls=CALLS, words=WORDS)


def ended(**fields: object) -> Seen:
    whole = {"words": ALL, "end": "completed", "ended_s": 13.0, "answered": True}
    return Seen("r", **{"reread": set(ALL), **whole, **fields})  # type: ignore[arg-type]  # of any field


def test_a_whole_run_has_no_fault() -> None:
    figures = judged(ended(next_s=12.5), 0, 1)
    assert figures.faults == []
    assert (figures.met, figures.effects_once, figures.completed) == (1, 2, 1)
    assert (figures.next_s, figures.restart_s) == ([2.5], [2.0])


@pytest.mark.parametrize(
    ("seen", "effects", "fault"),
    [
        (ended(), (0, 0, 1), "1 effects happened twice or more often: r/0"),
        (ended(), (0,), "1 effects never happened in runs that are said to be completed: r/1"),
        (ended(words=[0, 1, 3]), (0, 1), "1 words are lost in completed runs: r"),
        (ended(words=[0, 1, 1, 2, 3]), (0, 1), "1 words were repeated: r"),
        (ended(reread={0, 1}), (0, 1), "2 words that a client saw are not shown later: r"),
        (ended(end=None, ended_s=None), (0, 1), "1 runs have no end: r"),
        (ended(end=None, ended_s=None, unknown=True), (0, 1), "1 runs are no longer known: r"),
    ],
)
def test_each_fault_is_told_with_its_run(seen: Seen, effects: tuple[int, ...], fault: str) -> None:
    assert judged(seen, *effects).faults == [fault]


def test_words_that_are_only_in_a_text_shown_at_the_end_are_not_lost() -> None:
    assert judged(ended(words=[0], shown=set(ALL)), 0, 1).faults == []


def test_a_failed_run_may_lack_words_and_effects() -> None:
    figures = judged(ended(end="failed", words=[0], reread={0}), 0)
    assert figures.faults == []
    assert (figures.failed, figures.effects_never) == (1, 1)


def test_a_start_without_an_answer_is_neither_an_end_nor_endless() -> None:
    figures = judged(Seen("r"))
    assert (figures.unanswered, figures.endless, figures.met) == (1, 0, 1)


def test_a_run_that_ended_before_the_kill_was_not_met_by_it() -> None:
    assert judged(ended(ended_s=9.0), 0, 1).met == 0


def test_moments_repeat_with_their_seed_and_are_spread() -> None:
    def planned(seed: int) -> list[object]:
        return [*moments(seed, 20, stagger_s=1.0, calls=3, answer_after_s=0.1)]

    assert planned(5) == planned(5) != planned(6)
    drawn = moments(5, 20, stagger_s=1.0, calls=3, answer_after_s=0.1)
    times = sorted(each.delay_s for each in drawn if each.effect is None)
    assert [int(each * 10) for each in times] == list(range(10))
    after = [each for each in drawn if each.effect is not None]
    assert {each.effect for each in after} == {1, 2, 3}
    assert any(each.delay_s < 0.1 for each in after)
    assert any(each.delay_s > 0.1 for each in after)


def test_words_are_found_in_texts_and_in_json() -> None:
    assert words_in("#0 #12 x") == (0, 12)
    assert words_in({"messages": [{"content": "#3 #4"}]}) == (3, 4)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_has_a_start_and_asks_nothing_that_may_start_twice(name: str) -> None:
    """Only a protocol with keys may send its start again."""
    protocol = PROTOCOLS[name]("chaos", goes_on=True)
    run = Run("r", "chaos r 2", "session", "key")
    starts = protocol.start(run)
    further = protocol.next(run)
    assert starts[-1].method == "POST"
    assert (further in starts) == (name == "penstock")
    if name == "penstock":
        assert starts[0].headers["idempotency-key"] == "key"
