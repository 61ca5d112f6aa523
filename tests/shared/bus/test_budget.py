"""The budget bounds the bytes in flight, shares them fairly, and admits in the order of arrival."""

from __future__ import annotations

import asyncio

from penstock.bus.budget import Budget, Gate


def fill(budget: Budget, held: list[int], piece: int) -> None:
    """Let every holder take pieces in turn until the budget admits none."""
    while any(budget.admits(each) for each in held):
        for number, each in enumerate(held):
            if budget.admits(each):
                held[number] += piece
                budget.take(piece)


def test_one_that_floods_leaves_half_to_the_others() -> None:
    budget, held = Budget(1000), [0]
    fill(budget, held, 10)
    assert 500 <= held[0] <= 510
    assert budget.free_bytes == 1000 - held[0]


def test_a_new_user_gets_as_much_time_as_the_users_who_flood() -> None:
    budget, held = Budget(1000), [0] * 4
    fill(budget, held, 1)
    new = [0]
    fill(budget, new, 1)
    assert all(195 <= each <= 205 for each in held)
    # the new holder gets half of what was left, until the other holders have drained
    assert 95 <= new[0] <= 105


def test_a_run_that_holds_no_bytes_may_take_some_over_the_limit() -> None:
    budget = Budget(100)
    budget.take(1000)
    assert budget.free_bytes == 0
    assert budget.admits(0)
    assert not budget.admits(1)


async def test_a_gate_lets_through_in_the_order_of_arrival() -> None:
    gate, order = Gate(100), list[int]()

    async def passes(number: int, size: int) -> None:
        await gate.enter(size)
        order.append(number)
        assert gate.inside_bytes <= 100 or size > 100
        await asyncio.sleep(0)
        gate.leave(size)

    # The third size is larger than the limit: it is admitted alone, and no later size overtakes it.
    sizes = [60, 60, 500, 1, 1, 40]
    await asyncio.gather(*(passes(number, size) for number, size in enumerate(sizes)))
    assert order == [0, 1, 2, 3, 4, 5]
    assert gate.inside_bytes == 0


async def test_a_caller_cancelled_at_the_gate_takes_no_room_and_admits_the_next() -> None:
    gate = Gate(100)
    await gate.enter(60)
    large = asyncio.create_task(gate.enter(80))
    small = asyncio.create_task(gate.enter(10))
    await asyncio.sleep(0)
    large.cancel()
    await asyncio.wait([large])
    await small
    assert gate.inside_bytes == 70


async def test_a_caller_cancelled_right_after_its_admission_frees_the_room() -> None:
    gate = Gate(100)
    await gate.enter(100)
    next_one = asyncio.create_task(gate.enter(50))
    await asyncio.sleep(0)
    gate.leave(100)
    next_one.cancel()
    await asyncio.wait([next_one])
    assert next_one.cancelled()
    assert gate.inside_bytes == 0


async def test_a_caller_that_does_not_wait_at_the_gate_overtakes_no_waiting_caller() -> None:
    gate = Gate(100)
    assert gate.enter_now(60)
    assert not gate.enter_now(60)
    waits = asyncio.create_task(gate.enter(60))
    await asyncio.sleep(0)
    assert not gate.enter_now(1)
    gate.leave(60)
    await waits
    assert gate.enter_now(1)
    assert gate.inside_bytes == 61
