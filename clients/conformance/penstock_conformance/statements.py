"""Statements about servers, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from penstock_conformance.dialect import OTHER_TYPES, Dialect, NotShown
from penstock_conformance.trial import Scenario, Trial

T = TypeVar("T")
_MAX_TOLD: Final = 5


class Level(Enum):
    """How strong a statement is. A server that fails a MUST does not conform."""

    MUST = "MUST"
    SHOULD = "SHOULD"


class Group(Enum):
    """What a statement is about."""

    SHAPE = "shape"
    ORDER = "order"
    ENDS = "ends"
    RESUME = "resume"
    DUPLICATES = "duplicates"
    GAPS = "gaps"
    CANCEL = "cancel"
    APPROVALS = "approvals"
    HOSTILE = "hostile input"
    SLOW = "slow reader"
    USERS = "two users"


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """What must be true of each of these scenarios. `name` is the end of a statement's id.

    `faults` yields a sentence for each fault of what was recorded, and raises `NotShown` if the
    record shows neither a fault nor its absence.
    """

    name: str
    group: Group
    text: str
    of: Sequence[Scenario[T]]
    faults: Callable[[Dialect, T], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Statement:
    """A rule, as a protocol has it. `source` is the address of the text that says so."""

    id: str
    level: Level
    source: str
    rule: Rule[Any]


Row = tuple[Level, str, Rule[Any]]  # with the source


def table(protocol: str, own: Sequence[Row], common: Sequence[Row]) -> tuple[Statement, ...]:
    """Return the statements of a protocol: its own rows, and the common ones that it has not."""
    names = {rule.name for _, _, rule in own}
    rows = (*own, *(row for row in common if row[2].name not in names))
    return tuple(
        Statement(f"{protocol}.{rule.name}", level, source, rule) for level, source, rule in rows
    )


class Verdict(Enum):
    """What was found out. `NOT_SHOWN` is no success."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_SHOWN = "not shown"


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict on a statement. `told` has the faults, or why nothing could be shown."""

    statement: Statement
    verdict: Verdict
    told: tuple[str, ...] = ()

    @property
    def breaks(self) -> bool:
        """Whether the server does not conform because of this."""
        return self.verdict is Verdict.FAILED and self.statement.level is Level.MUST


async def judge(trial: Trial, statements: Iterable[Statement]) -> list[Result]:
    """Return the verdict on each statement.

    Raises:
        NotReachable: nothing answers at the server's address.
    """
    return [await _verdict(trial, each) for each in statements]


async def _verdict(trial: Trial, statement: Statement) -> Result:
    rule: Rule[Any] = statement.rule
    faults: list[str] = []
    reasons: list[str] = []
    is_shown = False
    for scenario in rule.of:
        try:
            found = list(rule.faults(trial.dialect, await trial.get(scenario)))
        except NotShown as reason:
            reasons.append(str(reason))
            continue
        except OTHER_TYPES as error:
            reasons.append(f"{scenario.name}: a value is not of its type: {error!r}")
            continue
        is_shown = True
        faults += [f"{scenario.name}: {fault}" for fault in found]
    if faults:
        return Result(statement, Verdict.FAILED, _first(faults))
    if is_shown:
        return Result(statement, Verdict.PASSED)
    return Result(statement, Verdict.NOT_SHOWN, _first(list(dict.fromkeys(reasons))))


def _first(sentences: Sequence[str]) -> tuple[str, ...]:
    rest = len(sentences) - _MAX_TOLD
    return (*sentences[:_MAX_TOLD], *([f"and {rest} more"] if rest > 0 else []))
