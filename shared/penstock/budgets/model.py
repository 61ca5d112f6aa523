"""The budgets as a document. Pure."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, cast
from zoneinfo import ZoneInfo

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from penstock.documents.fields import (
    DecidersOf,
    Duration,
    Id,
    Name,
    RunMatch,
    Strict,
    Version,
    require_unique,
)

Dimension = Literal["cost", "tokens", "tool_calls", "model_calls", "time"]
Per = Literal["run", "session", "user", "agent", "tenant"]
Window = Literal["hour", "day", "week", "month"]
Do = Literal["warn", "ask", "stop", "refuse"]
MAX_BUDGETS: Final = 200
MICROS: Final = 1_000_000
_MONEY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ([A-Z]{3})")
_COUNT: Final = re.compile(r"(\d{1,15}) (tokens|tool_calls|model_calls)")


class Money(NamedTuple):
    """An amount of money, in millionths of its currency."""

    micros: int
    currency: str

    def __str__(self) -> str:
        amount = Decimal(self.micros) / MICROS
        shown = f"{amount:.2f}" if amount == round(amount, 2) else f"{amount.normalize():f}"
        return f"{shown} {self.currency}"


class Amount(NamedTuple):
    """An amount in one dimension: money in millionths, time in seconds, or a number."""

    dimension: Dimension
    value: int
    currency: str | None = None

    def __str__(self) -> str:
        return shown(self.dimension, self.value, self.currency)


def shown(dimension: str, value: int, currency: str | None = None) -> str:
    """Return an amount for people, such as `1.50 EUR`, `400000 tokens` or `90s`."""
    if dimension == "cost":
        return str(Money(value, currency or ""))
    if dimension == "time":
        return f"{value} s"
    return f"{value} times the same call" if dimension == "same_call" else f"{value} {dimension}"


def _money(value: Any) -> Money:
    if isinstance(value, Money):
        return value
    match = _MONEY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("an amount of money is a number and a currency, such as 2.00 EUR")
    return Money(int(Decimal(match[1]) * MICROS), match[2])


def _amount(value: Any) -> Amount:
    if isinstance(value, Amount):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if (count := _COUNT.fullmatch(text)) is not None:
        return Amount(cast(Dimension, count[2]), int(count[1]))
    if _MONEY.fullmatch(text) is None:
        raise ValueError("an amount is such as 1.00 EUR, 50000 tokens or 20 tool_calls")
    return Amount("cost", *_money(text))


_AS_TEXT: Final = PlainSerializer(str, return_type=str)
MoneyField = Annotated[Money, BeforeValidator(_money, json_schema_input_type=str), _AS_TEXT]
AmountField = Annotated[Amount, BeforeValidator(_amount, json_schema_input_type=str), _AS_TEXT]
Count = Annotated[int, Field(strict=True, ge=1, le=10**15)]


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise ValueError(f"there is no time zone {name!r}; an example is Europe/Paris") from None
    return name


class Limit(Strict):
    """What may be used. At least one field is set."""

    cost: MoneyField | None = Field(
        None, description="Money, such as `2.00 EUR`. Costs in other currencies do not count."
    )
    tokens: Count | None = Field(None, description="Tokens that models read and wrote.")
    tool_calls: Count | None = Field(None, description="Calls of tools.")
    model_calls: Count | None = Field(None, description="Calls of models.")
    time: Duration | None = Field(
        None, description="Time for which runs were under way; waiting for a person is no time."
    )
    same_call: Annotated[int, Field(strict=True, ge=2, le=1000)] | None = Field(
        None, description="How often a run may call one tool with the same arguments."
    )

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("a limit names at least one of cost, tokens, tool_calls, …")
        return self

    @property
    def amounts(self) -> dict[Dimension, int]:
        """The limits that are added up, without `same_call`."""
        found: dict[Dimension, int | None] = {
            "cost": self.cost.micros if self.cost is not None else None,
            "tokens": self.tokens,
            "tool_calls": self.tool_calls,
            "model_calls": self.model_calls,
            "time": self.time,
        }
        return {name: value for name, value in found.items() if value is not None}


class Step(Strict):
    """What happens when a share of the limit is used."""

    share: float = Field(gt=0, le=1, description="A share of each limit, such as 0.8.")
    do: Do = Field(
        description="`warn` tells the run; `ask` stops it until a person decides; `stop` ends it; "
        "`refuse` starts no further runs."
    )


class Asking(Strict):
    """Who decides whether a run may use more, and how much more."""

    deciders: DecidersOf = Field(
        DecidersOf(users=["requester"]), description="Who may decide; default: the requester."
    )
    need: int = Field(1, strict=True, ge=1, le=100, description="How many must approve.")
    deadline: Duration | None = Field(None, description="The time to decide, such as `30m`.")
    on_deadline: Literal["stop", "leave"] = Field(
        "stop", description="What the end of the deadline means."
    )
    raises: list[AmountField] = Field(
        [], alias="raise", max_length=10, description="Amounts by which the limit may be raised."
    )


class Budget(Strict):
    """A limit on what some runs use."""

    id: Id = Field(description="The budget's name in records and events.")
    match: RunMatch = Field(RunMatch(), description="The runs to which it applies.")
    when: str | None = Field(None, min_length=1, description="A condition in CEL.")
    per: Per = Field(description="What has its own account: each run, session, user, …")
    window: Window | None = Field(
        None, description="The account begins anew with each hour, day, week or month."
    )
    timezone: Annotated[Name, BeforeValidator(_zone)] = Field(
        "UTC", description="The time zone in which windows begin."
    )
    limit: Limit
    reserve: AmountField | None = Field(
        None, description="What a start sets aside until the run has ended."
    )
    at: list[Step] = Field(min_length=1, max_length=10)
    ask: Asking = Field(Asking())

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        does = {step.do for step in self.at}
        amounts = self.limit.amounts
        if "ask" in self.model_fields_set and "ask" not in does:
            raise ValueError("ask: no step of `at` asks")
        if "refuse" in does and self.per == "run":
            raise ValueError("at: only a budget of several runs can refuse a start")
        if self.window is not None and self.per == "run":
            raise ValueError("window: a budget of one run has none")
        if self.per != "run" and self.limit.same_call is not None:
            raise ValueError("limit: same_call needs `per: run`")
        if self.reserve is not None:
            if self.per == "run" or not does & {"refuse", "stop"}:
                raise ValueError("reserve: only a budget that refuses starts sets something aside")
            self._check_amount(self.reserve, "reserve")
            if self.reserve.value > amounts[self.reserve.dimension]:
                raise ValueError("reserve: it is more than the limit, so no run could start")
        for amount in self.ask.raises:
            self._check_amount(amount, "raise")
        return self

    def _check_amount(self, amount: Amount, name: str) -> None:
        if amount.dimension not in self.limit.amounts:
            raise ValueError(f"{name}: the budget does not limit {amount.dimension}")
        if amount.currency != (self.currency if amount.dimension == "cost" else None):
            raise ValueError(f"{name}: the limit is in {self.currency}")

    @property
    def currency(self) -> str | None:
        return self.limit.cost.currency if self.limit.cost is not None else None

    @property
    def refuses_at(self) -> float | None:
        """The share of the limit from which on no run starts; None if starts are never refused."""
        return min((step.share for step in self.at if step.do in ("refuse", "stop")), default=None)


class BudgetsDocument(Strict):
    """All budgets. A run that several of them match must keep within each."""

    version: Version = Field(description="A number that grows with every change.")
    budgets: list[Budget] = Field([], max_length=MAX_BUDGETS)

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        require_unique([budget.id for budget in self.budgets], "budgets")
        return self
