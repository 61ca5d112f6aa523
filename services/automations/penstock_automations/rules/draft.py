"""Defines what a rule that a person has written is checked for, beside its form.

The models of rules check a stored rule for its form alone. Otherwise, a stored rule could not be
read any more when an agent is removed, or a later version checks more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationInfo

from penstock.settings import Config
from penstock_automations.guard import Guard

Problem = dict[str, Any]  # a `field`, a `reason`, and in a text also `line` and `column`


@dataclass(slots=True)
class Draft:
    """A rule that is being checked, as the context of its models' validators.

    Without `config`, agents are not checked; without `guard`, addresses are not. The validators add
    to `warnings` what may be a mistake, and the rule is valid nevertheless.
    """

    config: Config | None = None
    guard: Guard | None = None
    warnings: list[Problem] = field(default_factory=list)


def draft_of(info: ValidationInfo) -> Draft | None:
    """Return the draft that is being checked; None for a rule that was stored."""
    return info.context if isinstance(info.context, Draft) else None
