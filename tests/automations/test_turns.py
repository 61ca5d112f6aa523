"""Users take turns in matching."""

from __future__ import annotations

from penstock_automations.matching.turns import IN_TURN, Turns


def test_an_event_waits_for_one_turn_of_each_other_user_and_not_for_their_queues() -> None:
    turns: Turns[str] = Turns()
    for number in range(1000):
        turns.add("mallory", f"m{number}")
    first = turns.take(25)
    turns.add("bob", "b")
    assert "b" in turns.take(2 * IN_TURN)
    assert first == [f"m{number}" for number in range(25)]


def test_the_events_of_one_user_stay_in_order_and_none_is_lost() -> None:
    turns: Turns[int] = Turns()
    for number in range(3 * IN_TURN):
        turns.add(str(number % 2), number)
    taken: list[int] = []
    while turns:
        taken += turns.take(7)
    assert sorted(taken) == list(range(3 * IN_TURN))
    for parity in (0, 1):
        mine = [number for number in taken if number % 2 == parity]
        assert mine == sorted(mine)
