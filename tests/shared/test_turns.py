"""Tenants take turns, and the users of each."""

from __future__ import annotations

from penstock.turns import TenantUser, Turns

MALLORY, BOB = TenantUser("", "mallory"), TenantUser("", "bob")
IN_TURN = 10


def test_an_item_waits_for_one_turn_of_each_other_user_and_not_for_their_queues() -> None:
    turns: Turns[str] = Turns(IN_TURN)
    for number in range(1000):
        turns.add(MALLORY, f"m{number}")
    first = turns.take(25)
    turns.add(BOB, "b")
    assert "b" in turns.take(2 * IN_TURN)
    assert first == [f"m{number}" for number in range(25)]


def test_an_item_waits_for_one_turn_of_each_other_tenant_and_not_for_all_their_users() -> None:
    turns: Turns[str] = Turns(IN_TURN)
    for number in range(1000):
        turns.add(TenantUser("acme", f"user-{number}"), f"m{number}")
    turns.add(TenantUser("umbrella", "bob"), "b")
    turns.add(BOB, "c")
    assert {"b", "c"} < set(turns.take(4))
    assert len(turns) == 998


def test_the_users_of_a_tenant_take_turns_too() -> None:
    turns: Turns[str] = Turns()
    for number in range(100):
        turns.add(TenantUser("acme", "mallory"), f"m{number}")
    turns.add(TenantUser("acme", "alice"), "a")
    turns.add(TenantUser("umbrella", "bob"), "b")
    assert turns.take(4) == ["m0", "b", "a", "m1"]


def test_the_items_of_one_user_stay_in_order_and_none_is_lost() -> None:
    turns: Turns[int] = Turns(IN_TURN)
    for number in range(3 * IN_TURN):
        turns.add(TenantUser("", str(number % 2)), number)
    taken: list[int] = []
    while turns:
        taken += turns.take(7)
    assert sorted(taken) == list(range(3 * IN_TURN))
    for parity in (0, 1):
        mine = [number for number in taken if number % 2 == parity]
        assert mine == sorted(mine)
