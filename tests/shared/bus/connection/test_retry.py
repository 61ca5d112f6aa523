"""A request is repeated while no answer comes, and the first answer counts."""

from __future__ import annotations

import asyncio

import pytest

from penstock.bus.connection import retry
from penstock.bus.connection.retry import first_answer, until_answered
from penstock.bus.errors import BusError, BusUnavailable, OutcomeUnknown


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "AGAIN_S", 0.01)


async def test_what_is_answered_is_asked_once() -> None:
    asked = []

    async def ask() -> int:
        asked.append(1)
        return 7

    assert await first_answer(ask) == 7
    assert len(asked) == 1


async def test_a_question_that_got_lost_is_asked_again() -> None:
    asked: list[int] = []

    async def ask() -> int:
        asked.append(1)
        if len(asked) < 3:
            await asyncio.Event().wait()
        return len(asked)

    assert await first_answer(ask) == 3


async def test_a_late_answer_to_an_early_question_counts() -> None:
    asked: list[int] = []
    late = asyncio.Event()

    async def ask() -> str:
        asked.append(1)
        if len(asked) == 1:
            await late.wait()
            return "late"
        if len(asked) == 3:
            late.set()
        await asyncio.Event().wait()
        return "never"

    assert await first_answer(ask) == "late"


async def test_the_first_failure_ends_all_work() -> None:
    ended: list[str] = []

    async def ask() -> None:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        raise LookupError("nobody")

    with pytest.raises(LookupError, match="nobody"):
        await first_answer(ask)
    await asyncio.sleep(0)
    assert ended
    assert set(ended) == {"cancelled"}


async def test_a_cancelled_caller_sends_no_more_requests() -> None:
    ended: list[str] = []

    async def ask() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("over")

    task = asyncio.create_task(first_answer(ask))
    await asyncio.sleep(0.03)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert task.cancelled()
    assert ended


async def test_a_step_of_a_start_is_repeated_while_no_server_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry, "START_AGAIN_S", 0.0)
    left = [BusUnavailable("no server"), OutcomeUnknown("no answer"), BusError("refused")]

    async def step() -> str:
        if left:
            raise left.pop(0)
        return "taken"

    with pytest.raises(BusError, match="refused"):
        await until_answered("subscribing", step)
    assert "subscribing is tried again in 0 s: no server" in caplog.text
    assert "subscribing is tried again in 0 s: no answer" in caplog.text
    assert await until_answered("subscribing", step) == "taken"
