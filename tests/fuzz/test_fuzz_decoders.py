"""Any upstream stream, in any chunking, gives events of the contract with one end."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fuzz import cases, folded
from fuzz.folded import Leg, Story
from fuzz.recorded import PROTOCOLS
from fuzz.spoken import speak

QUICK_CASES = 800


def case(rng: random.Random) -> None:
    """Fold one run twice and encode its events; a failure names the shortest failing run."""
    story = folded.story(rng)
    pieces = rng.random()
    try:
        judge(story, pieces, speaks=rng.random())
    except Exception as error:
        error.add_note(f"{story.protocol}, {story.kind}: {shortest(story, pieces, error)}")
        raise


def judge(story: Story, pieces: float, speaks: float | None = None) -> None:
    """Raise if a property does not hold."""
    events = folded.fold(story, random.Random(pieces), whole=True)
    bodies = folded.check(events)
    again = folded.fold(story, random.Random(pieces), whole=False)
    if [event.body for event in again] != [event.body for event in events]:
        raise folded.Broken("other chunks, or a restart, give other events")
    if speaks is not None:
        speak(random.Random(speaks), bodies)


def shortest(story: Story, pieces: float, error: Exception) -> list[Leg]:
    """Return the story's legs with as few frames as still fail in the same way."""
    for at, leg in enumerate(story.legs):

        def fails(parts: list[bytes], at: int = at, leg: Leg = leg) -> bool:
            legs = [*story.legs]
            legs[at] = replace(leg, body=b"".join(parts))
            try:
                judge(replace(story, legs=legs), pieces, 0.5)
            except type(error):
                return True
            except Exception:
                return False
            return False

        body = b"".join(cases.smallest(folded.frames_of(leg.body), fails))
        story.legs[at] = replace(leg, body=body)
    return story.legs


def test_whatever_comes_is_events_of_the_contract_in_any_chunking() -> None:
    cases.run(case, cases.QUICK_SEED, QUICK_CASES, "whatever_comes")


@pytest.mark.chaos
def test_chaos_whatever_comes_is_events_of_the_contract() -> None:
    seed = cases.chaos_seed()
    print(f"\nPENSTOCK_CHAOS_SEED={seed}")
    cases.run(case, seed, cases.how_many(0.7), "whatever_comes")


def test_every_decoder_is_reached() -> None:
    rng = random.Random(1)
    assert {folded.story(rng).protocol for _ in range(100)} == PROTOCOLS
