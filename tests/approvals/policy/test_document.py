"""A policy with a mistake is refused, with the line of each mistake."""

from __future__ import annotations

import pytest

from penstock.documents.reading import InvalidDocument
from penstock_approvals.policy.document import parse

RULE = """\
version: 1
rules:
  - id: r
    outcome: ask
    deciders: {roles: [x]}
"""


def mistakes(text: str) -> list[str]:
    with pytest.raises(InvalidDocument) as refused:
        parse(text)
    return [str(mistake) for mistake in refused.value.mistakes]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    nedd: 2", "line 6: rules[0].nedd: there is no such field"),
        ("    deadline: 1 hour", "line 6: rules[0].deadline: a duration is a number and s, m, h"),
        ("    deadline: 0s", "line 6: rules[0].deadline: must be greater than"),
        ("    need: 0", "line 6: rules[0].need: must be greater than"),
        ("    need: '2'", "line 6: rules[0].need: must be an integer"),
        ("    on_deadline: approve", "line 3: rules[0]: on_deadline needs a deadline"),
        ("    on_deadline: maybe", "line 6: rules[0].on_deadline: must be 'reject'"),
        ("    edit: memo", "line 3: rules[0]: edit: 'memo' is no argument; write args.memo"),
        ("    when: args.x >", "line 6: rules[0].when: line 1, column 9: Syntax error"),
        ("    when: nope == 1", "line 6: rules[0].when: line 1, column 1: undeclared reference"),
        ("    when: args.x", "line 6: rules[0].when: line 1, column 1: the condition gives"),
        ("    match: {kind: confirm}", "line 6: rules[0].match: kind: confirm is unknown"),
        ("    match: {tools: x}", "line 6: rules[0].match.tools: there is no such field"),
        ("    outcome: ask", "line 6: outcome: the key is there twice"),
        ("  - {id: r, outcome: approve}", "line 1: rules: these ids are used twice: r"),
        ("  - {id: default, outcome: approve}", "line 6: rules[1]: id: default is the name"),
        ("  - {id: b, outcome: approve, deadline: 2h}", "line 6: rules[1]: deadline: only a rule"),
        ("  - {id: b, outcome: ask, need: 2}", "line 6: rules[1]: need is 2, and only 1 may"),
        ("  - {id: b c, outcome: ask}", "line 6: rules[1].id: String should match pattern"),
        ("  - {id: b, outcome: allow}", "line 6: rules[1].outcome: must be 'approve'"),
        ("  - [", "line 7: not YAML: expected the node content"),
        (
            "    deadline: 1h\n    escalate: [{after: 2h, to: {}}]",
            "line 3: rules[0]: escalate: each `after` must be shorter",
        ),
        (
            "absences: [{user: a, delegate: b, from: 2026-12-02T00:00:00Z, "
            "until: 2026-12-01T00:00:00Z}]",
            "line 6: absences[0]: until must be later than from",
        ),
        (
            "absences: [{user: a, delegate: b, from: 2026-12-02, until: 2026-12-05T00:00:00Z}]",
            "line 6: absences[0].from: ",
        ),
        (
            "absences: [{user: a, delegate: requester, from: 2026-12-01T00:00:00Z, "
            "until: 2026-12-05T00:00:00Z}]",
            "line 6: absences[0]: user and delegate: requester is no user",
        ),
        ("    remind: [30m]", "line 3: rules[0]: remind: each time must be shorter"),
        ("    deadline: 1h\n    remind: [1h]", "line 3: rules[0]: remind: each time must be"),
    ],
)
def test_a_mistake_is_named_with_its_line(line: str, expected: str) -> None:
    found = mistakes(f"{RULE}{line}\n")
    assert any(each.startswith(expected) for each in found), found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must be an object"),
        ("[]", "must be an object"),
        ("rules: []", "version: is missing"),
        ("version: 0", "version: must be greater than or equal to 1"),
        ("version: '7'", "version: must be an integer"),
        ("version: 1\nx: !!python/object:os.system {}", "could not determine a constructor"),
        ("version: 1 #" + "x" * 600_000, "at most"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_policy_is_refused(text: str, expected: str) -> None:
    assert any(expected in each for each in mistakes(text))


def test_all_mistakes_are_named_at_once() -> None:
    text = RULE + "    need: 0\n    deadline: x\n"
    assert len(mistakes(text)) == 2
