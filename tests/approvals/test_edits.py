"""A decision changes only the arguments that the policy lets it change."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_approvals.outcomes.rules import DecisionMismatch, check_edit

ASKED: dict[str, Any] = {"to": "x", "amount": 5, "memo": "a", "tags": ["a"], "at": {"h": 1, "m": 2}}


@pytest.mark.parametrize(
    ("changes", "allowed", "refused"),
    [
        ({}, [], None),
        ({"amount": 5.0}, [], None),
        ({"memo": "b"}, ["args.memo"], None),
        ({"memo": "b"}, ["*"], None),
        ({"memo": "b", "amount": 9}, ["args.*"], None),
        ({"memo": None}, ["args.memo"], None),
        ({"at": {"h": 9, "m": 2}}, ["args.at"], None),
        ({"at": {"h": 9, "m": 2}}, ["args.at.h"], None),
        ({"at": {"h": 9, "m": 2}}, ["args.at.*"], None),
        ({"at": {"h": 9, "m": 3}}, ["args.at.h"], "args.at.m may not be edited"),
        ({"memo": "b"}, [], "args.memo may not be edited; the policy allows nothing"),
        ({"memo": "b", "amount": 9}, ["args.memo"], "args.amount may not be edited"),
        ({"amount": True}, [], "args.amount may not be edited"),
        ({"new": 1}, ["args.memo"], "args.new may not be edited"),
        ({"memo.x": 1}, ["args.memo"], "args.memo.x may not be edited"),
        ({"memorandum": 1}, ["args.memo"], "args.memorandum may not be edited"),
        ({"amount": "9"}, ["*"], "args.amount must stay a JSON number"),
        ({"tags": {"a": 1}}, ["*"], "args.tags must stay a JSON array"),
        ({"tags": list(range(9))}, ["args.tags"], None),
    ],
)
def test_only_allowed_arguments_change(
    changes: dict[str, Any], allowed: list[str], refused: str | None
) -> None:
    if refused is None:
        check_edit(ASKED, {**ASKED, **changes}, allowed)
    else:
        with pytest.raises(DecisionMismatch) as error:
            check_edit(ASKED, {**ASKED, **changes}, allowed)
        assert refused in str(error.value)
