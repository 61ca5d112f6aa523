"""Rules of one user whose conditions are slow do not stop the other tasks of the process."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from penstock_automations.matching import matcher
from penstock_automations.matching.matcher import AT_ONCE, SLOW_S, Matcher
from penstock_automations.matching.rule_matches import Match


async def test_other_tasks_run_between_the_slow_conditions_of_one_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluated: list[int] = []
    seen: list[int] = []

    def slow(rules: list[Any], *_: Any) -> list[Match]:
        time.sleep(SLOW_S * 1.5)
        evaluated.extend(range(len(rules)))
        return [Match(rule) for rule in rules]

    monkeypatch.setattr(matcher, "matches", slow)
    rules: list[Any] = [object() for _ in range(AT_ONCE * 2 + 1)]

    async def other() -> None:
        while len(evaluated) < len(rules):
            seen.append(len(evaluated))
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    body = {"event": {"category": "llm", "action": "x"}}
    found = await Matcher._found(Matcher.__new__(Matcher), rules, body, 2, "r1")
    await task
    assert [each.rule for each in found] == rules
    assert {AT_ONCE, AT_ONCE * 2} <= set(seen), "it ran after each part"
