"""The document of budgets is strict, and says which budgets apply to a start."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.budgets.document import RunFacts, parse
from penstock.budgets.model import Amount, Money
from penstock.documents.reading import InvalidDocument

ISSUE = """\
version: 3
budgets:
  - id: researcher-run
    match: {agent: research, roles: [trial]}
    per: run
    limit:
      {cost: 2.00 EUR, tokens: 400000, tool_calls: 60, model_calls: 40, time: 20m, same_call: 3}
    at: [{share: 0.8, do: warn}, {share: 1.0, do: ask}]
    ask:
      deciders: {roles: [leads], not: [requester]}
      deadline: 30m
      on_deadline: stop
      raise: [1.00 EUR, 5.00 EUR]
  - id: user-month
    per: user
    when: depth == 0
    window: month
    timezone: Europe/Rome
    limit: {cost: 500 EUR}
    reserve: 0.50 EUR
    at: [{share: 1.0, do: refuse}]
"""
NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def facts(agent: str = "research", roles: tuple[str, ...] = (), depth: int = 0) -> RunFacts:
    return RunFacts("run", agent=agent, user="ada", session_id="s", roles=roles, depth=depth)


def test_amounts_are_whole_numbers() -> None:
    run, month = parse(ISSUE).document.budgets
    assert run.limit.cost == Money(2_000_000, "EUR")
    assert run.limit.amounts == {
        "cost": 2_000_000,
        "tokens": 400_000,
        "tool_calls": 60,
        "model_calls": 40,
        "time": 1200,
    }
    assert run.ask.raises == [Amount("cost", 1_000_000, "EUR"), Amount("cost", 5_000_000, "EUR")]
    assert month.reserve == Amount("cost", 500_000, "EUR")
    assert list(map(str, run.ask.raises)) == ["1.00 EUR", "5.00 EUR"]


def test_a_stored_document_is_the_same_document() -> None:
    first = parse(ISSUE)
    stored = first.document.model_dump_json(by_alias=True, exclude_unset=True)
    assert parse(stored).digest == first.digest


@pytest.mark.parametrize(
    ("start", "applying"),
    [
        (facts(roles=("trial",)), ["researcher-run", "user-month"]),
        (facts(roles=("staff",)), ["user-month"]),
        (facts(agent="other", roles=("trial",)), ["user-month"]),
        (facts(depth=1), []),
    ],
)
def test_patterns_roles_and_conditions_choose_budgets(start: RunFacts, applying: list[str]) -> None:
    found = parse(ISSUE).applying(start, NOW)
    assert [each.budget.id for each in found if each.applies] == applying


def test_a_budget_whose_condition_fails_applies() -> None:
    text = ISSUE.replace("when: depth == 0", "when: 1 / depth > 0")
    [_, month] = parse(text).applying(facts(), NOW)
    assert month.applies
    assert month.is_error


@pytest.mark.parametrize(
    ("before", "after", "line", "reason"),
    [
        ("cost: 500 EUR", "cost: 500", 19, "such as 2.00 EUR"),
        ("cost: 500 EUR", "cost: 500.1234567 EUR", 19, "such as 2.00 EUR"),
        ("reserve: 0.50 EUR", "reserve: 0.50 USD", 14, "the limit is in EUR"),
        ("reserve: 0.50 EUR", "reserve: 9 tokens", 14, "does not limit tokens"),
        ("reserve: 0.50 EUR", "reserve: 501 EUR", 14, "no run could start"),
        ("per: user", "per: run", 14, "refuse"),
        ("Europe/Rome", "Europe/Atlantis", 18, "no time zone"),
        ("depth == 0", "dept == 0", 16, "dept"),
        ("depth == 0", "depth", 16, "not true or false"),
        ("id: user-month", "id: researcher-run", 1, "used twice"),
        ("window: month", "window: year", 17, "hour"),
        ("{share: 1.0, do: refuse}", "{share: 1.0, do: ask}, {share: 2, do: warn}", 21, "less"),
        ("do: ask}]", "do: stop}]", 3, "no step of `at` asks"),
        ("cost: 500 EUR", "{}", 19, ""),
    ],
)
def test_a_mistake_is_named_with_its_line(before: str, after: str, line: int, reason: str) -> None:
    assert before in ISSUE
    with pytest.raises(InvalidDocument) as refused:
        parse(ISSUE.replace(before, after))
    mistake = refused.value.mistakes[0]
    assert reason in str(mistake)
    assert mistake.line == line
