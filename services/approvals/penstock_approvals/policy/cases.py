"""Defines test cases of a policy: a pause, and the ruling that is expected for it. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field

from penstock.documents.fields import Strict
from penstock_approvals.policy.rulings import Question, Ruling


class CaseItem(Strict):
    """One item of the pause."""

    kind: str = "confirmation"
    tool: str | None = None
    args: dict[str, Any] = Field({})


class Expected(Strict):
    """The expected ruling. Only the fields that are given are compared."""

    outcome: Literal["approve", "reject", "mixed", "ask"] | None = None
    rule: str | None = None
    need: int | None = None


class Case(Strict):
    """A pause to test. For a pause with one item, `tool`, `args` and `kind` may be given instead of
    `items`."""

    agent: str = "agent"
    user: str = "user"
    roles: list[str] = Field([])
    session_id: str = "session"
    protocol: str = "agno"
    depth: int = 0
    run: dict[str, Any] = Field({})
    now: datetime | None = None
    items: list[CaseItem] = Field([])
    tool: str | None = None
    args: dict[str, Any] = Field({})
    kind: str = "confirmation"
    expect: Expected = Field(Expected(), description="What the policy should say.")

    def question(self) -> Question:
        items = self.items or [CaseItem(kind=self.kind, tool=self.tool, args=self.args)]
        facts = self.model_dump(exclude={"items", "tool", "args", "kind", "expect", "now"})
        numbered = enumerate(items, 1)
        return Question(
            items=[{"item_id": str(number), **item.model_dump()} for number, item in numbered],
            now=self.now or datetime.now(UTC),
            **facts,
        )

    def differences(self, ruling: Ruling) -> list[str]:
        actual = {"outcome": ruling.outcome, "rule": ruling.rule_id, "need": ruling.need}
        wanted = self.expect.model_dump(exclude_none=True)
        return [
            f"{name} is {actual[name]}, and {value} was expected"
            for name, value in wanted.items()
            if actual[name] != value
        ]
