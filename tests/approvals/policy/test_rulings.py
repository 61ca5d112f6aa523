"""The ruling of a policy on a pause: who decides, on which terms, and what is automatic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.bus.records.approvals import ApprovalRecord
from penstock.documents.fields import DecidersOf
from penstock_approvals.policy.document import parse
from penstock_approvals.policy.rulings import Matched, Policy, Question, StepTerms
from penstock_approvals.policy.trial import compared
from support.drive.repository import ROOT

NOW = datetime(2026, 11, 22, 14, 0, 0, 250_000, tzinfo=UTC)
# The policy of the user documentation.
TEXT = (ROOT / "docs" / "approvals.md").read_text().split("```yaml\n")[1].split("```")[0]
POLICY = parse(TEXT)


def item(tool: str | None, item_id: str = "1", kind: str = "confirmation", **args: Any) -> Any:
    return {"item_id": item_id, "kind": kind, "tool": tool, "args": args}


def asked(*items: Any, **fields: Any) -> Question:
    given: dict[str, Any] = {"agent": "teller", "user": "ada", "now": NOW, **fields}
    return Question(items=items, **given)


def sql(query: str = "drop table x", **more: Any) -> Any:
    return item("run_sql", **{"database": "production", "query": query, **more})


@pytest.mark.parametrize(
    ("what", "outcome", "rule"),
    [
        (item("get_weather"), "approve", "read-only"),
        (item("search_all"), "approve", "read-only"),
        (item("forget_all"), "ask", "default"),
        (item("Get_weather"), "ask", "default"),
        (sql(), "reject", "never-prod"),
        (sql("  TRUNCATE y"), "reject", "never-prod"),
        (sql("select 1"), "ask", "default"),
        (item("run_sql", database="test", query="drop table x"), "ask", "default"),
        (item("run_sql", query="drop table x"), "ask", "default"),
        (item("transfer", amount=1000.01), "ask", "payments"),
        (item("transfer", amount=5000), "ask", "payments"),
        (item("transfer", amount=1000), "ask", "default"),
        (item("transfer", amount="5000"), "ask", "payments"),
        (item("transfer"), "ask", "payments"),
        (item("transfer", amount=2**70), "ask", "payments"),
        (item(None, kind="input"), "ask", "default"),
        (item("get_address", kind="input"), "ask", "default"),
        (item("get_address", kind="external"), "ask", "default"),
    ],
    ids=str,
)
def test_the_first_rule_that_matches_decides(what: Any, outcome: str, rule: str) -> None:
    ruling = POLICY.outcome_of(asked(what))
    assert (ruling.outcome, ruling.rule_id, ruling.policy.version) == (outcome, rule, 7)


def test_an_asking_rule_says_who_and_how_many_and_until_when() -> None:
    ruling = POLICY.outcome_of(asked(item("transfer", amount=5000, memo="x")))
    [deciders] = ruling.deciders
    assert (deciders.roles, deciders.excluded, deciders.scope) == (
        ["finance"],
        ["requester"],
        "decide",
    )
    assert (ruling.need, ruling.on_deadline) == (2, "reject")
    assert ruling.expires_at == "2026-11-22T15:00:01Z", "a deadline is rounded up to a second"
    step, reminder = ruling.escalate
    assert step.to is not None
    assert (reminder.at, reminder.to) == ("2026-11-22T14:50:01Z", None)
    assert (step.at, step.to.roles) == ("2026-11-22T14:30:01Z", ["finance-leads"])
    assert step.to.excluded == ["requester"], "an escalation lets in nobody whom the rule excludes"
    assert [each.edit for each in ruling.items] == [["args.memo"]]


def test_reminders_come_before_the_earliest_deadline_of_a_pause_each_once() -> None:
    policy = parse(
        """
version: 1
rules:
  - {id: a, match: {tool: a}, outcome: ask, deadline: 2h, remind: [30m, 90m]}
  - {id: b, match: {tool: b}, outcome: ask, deadline: 1h, remind: [1800s],
     escalate: [{after: 10m, to: {roles: [leads]}}]}
"""
    )
    ruling = policy.outcome_of(asked(item("a", "1"), item("b", "2")))
    assert [(each.at[11:], each.to is None) for each in ruling.escalate] == [
        ("14:10:01Z", False),
        ("14:30:01Z", True),
    ]
    assert ruling.expires_at == "2026-11-22T15:00:01Z"


def test_a_ruling_says_whether_the_rule_calls_it_dangerous() -> None:
    rule = "- {id: purge, match: {tool: purge}, outcome: ask, danger: true}"
    policy = parse(f"version: 1\nrules:\n  {rule}\n")
    ruling = policy.outcome_of(asked(item("purge"), item("other", "2")))
    assert [each.danger for each in ruling.items] == [True, False]


def test_a_pause_is_automatic_only_if_each_of_its_items_is() -> None:
    reads = item("get_weather", "1")
    all_of_it = POLICY.outcome_of(asked(reads, item("search_x", "2")))
    mixed = POLICY.outcome_of(asked(reads, sql() | {"item_id": "2"}))
    one_asks = POLICY.outcome_of(asked(reads, item("rm", "2")))
    needs_value = POLICY.outcome_of(asked(reads, item("get_name", "2", kind="input")))
    assert (all_of_it.outcome, mixed.outcome) == ("approve", "mixed")
    assert [each.outcome for each in mixed.items] == ["approve", "reject"]
    assert mixed.items[1].note == "Not on production."
    assert (one_asks.outcome, needs_value.outcome) == ("ask", "ask")
    assert [each.outcome for each in one_asks.items] == ["approve", "ask"]


def test_several_items_are_asked_on_the_strictest_terms_of_all() -> None:
    policy = parse(
        """
version: 1
rules:
  - {id: a, match: {tool: a}, outcome: ask, deciders: {roles: [x]}, need: 3, deadline: 2h,
     on_deadline: approve}
  - {id: b, match: {tool: b}, outcome: ask, deciders: {roles: [y]}, deadline: 1h}
"""
    )
    ruling = policy.outcome_of(asked(item("b", "1"), item("a", "2")))
    assert (ruling.rule_id, ruling.need, ruling.expires_at) == ("a", 3, "2026-11-22T15:00:01Z")
    assert [each.roles for each in ruling.deciders] == [["y"], ["x"]]
    assert ruling.on_deadline == "reject"


STEP = """
version: 1
default: {outcome: %s}
rules:
  - {id: allowed, match: {tool: allowed}, outcome: approve}
  - {id: banned, match: {tool: banned}, outcome: reject}
  - {id: ask, match: {tool: ask}, outcome: ask, need: 3, deadline: 1h,
     deciders: {roles: [x], not: [eve]}}
  - {id: plain, match: {tool: plain}, outcome: ask}
"""


@pytest.mark.parametrize(
    ("tool", "default", "outcome", "need", "roles"),
    [
        ("other", "ask", "ask", 2, [["finance"]]),
        ("other", "reject", "reject", 1, []),
        ("other", "approve", "ask", 2, [["finance"]]),
        ("allowed", "ask", "ask", 2, [["finance"]]),
        ("banned", "ask", "reject", 1, []),
        ("ask", "ask", "ask", 3, [["x"], ["finance"]]),
        ("plain", "ask", "ask", 2, [["finance"]]),
    ],
)
@pytest.mark.parametrize("kind", ["confirmation", "input"])
def test_the_terms_of_a_workflows_step_hold_beside_those_of_the_policy(
    tool: str, default: str, outcome: str, need: int, roles: list[list[str]], kind: str
) -> None:
    policy = parse(STEP % default)
    step = StepTerms(DecidersOf.model_validate({"roles": ["finance"], "not": ["mallory"]}), 2)
    what = item(tool, kind=kind)
    ruling = policy.outcome_of(asked(what, protocol="workflow", step=step))
    assert (ruling.outcome, ruling.need) == (outcome, need)
    assert [each.roles for each in ruling.deciders] == roles
    assert (ruling.expires_at is not None) == (tool == "ask")
    if roles:
        assert "mallory" in ruling.deciders[-1].excluded
        assert ("eve" in ruling.deciders[0].excluded) == (tool == "ask")


def test_a_step_with_a_number_alone_leaves_it_to_the_policy_who_decides() -> None:
    policy = parse("version: 1\ndefault: {deciders: {roles: [lead], not: [requester]}}\n")
    ruling = policy.outcome_of(asked(item("x"), protocol="workflow", step=StepTerms(need=2)))
    assert (ruling.need, [each.roles for each in ruling.deciders]) == (2, [["lead"]])
    named = StepTerms(DecidersOf.model_validate({"users": ["requester", "ada"]}))
    ruling = policy.outcome_of(asked(item("x"), protocol="workflow", step=named))
    both = [(each.roles, each.users, each.excluded) for each in ruling.deciders]
    assert both == [
        (["lead"], [], ["requester"]),
        ([], ["requester", "ada"], ["requester"]),
    ]


def test_an_error_in_a_condition_asks_and_says_why() -> None:
    ruling = POLICY.outcome_of(asked(item("run_sql", query="drop table x")))
    [result] = ruling.results
    [error] = result.errors
    assert error.rule_id == "never-prod"
    assert "database" in error.reason
    assert not error.applies


@pytest.mark.parametrize(
    "later", ["", "  - {id: later, outcome: ask, deciders: {scope: decide}}\n"]
)
def test_a_reject_rule_whose_condition_fails_excludes_the_requester(later: str) -> None:
    text = "version: 1\nrules:\n  - {id: never, when: args.amount > 1000, outcome: reject}\n"
    policy = parse(text + later)
    ruling = policy.outcome_of(asked(item("transfer", amount="5000")))
    assert ruling.outcome == "ask"
    assert [each.excluded for each in ruling.deciders] == [["requester"]]
    unharmed = policy.outcome_of(asked(item("transfer", amount=5)))
    assert [each.excluded for each in unharmed.deciders] == [[]]


def test_after_an_error_no_later_rule_decides_automatically() -> None:
    policy = parse(
        """
version: 1
rules:
  - {id: broken, when: args.missing == 1, outcome: reject}
  - {id: all, outcome: approve}
  - {id: people, outcome: ask, need: 2, deciders: {roles: [ops]}}
"""
    )
    ruling = policy.outcome_of(asked(item("x")))
    assert (ruling.outcome, ruling.rule_id, ruling.need) == ("ask", "people", 2)
    [result] = ruling.results
    assert [(v.rule_id, v.match, v.applies) for v in result.verdicts] == [
        ("broken", Matched.ERROR, False),
        ("all", Matched.YES, False),
        ("people", Matched.YES, True),
    ]


@pytest.mark.parametrize(
    "when",
    [
        'tool == "x"',
        "args.n == 3",
        'kind == "confirmation"',
        'agent == "teller"',
        'protocol == "agno"',
        'session_id == "s"',
        'user == "ada"',
        '"clerk" in roles',
        'items.exists(i, i.tool == "x" && i.args.n == 3)',
        'now > timestamp("2026-11-22T13:59:59Z")',
        'now.getHours("Europe/Berlin") == 15',
        "depth == 0",
        'run.input == "Hello"',
        "!has(args.other)",
    ],
)
def test_a_condition_reads_everything_that_is_known(when: str) -> None:
    policy = parse(f"version: 1\nrules: [{{id: r, when: '{when}', outcome: approve}}]")
    question = asked(
        item("x", n=3),
        session_id="s",
        protocol="agno",
        roles=["clerk"],
        run={"input": "Hello"},
    )
    assert policy.outcome_of(question).outcome == "approve"


def test_the_depth_is_the_number_of_automation_rules_that_led_to_the_run() -> None:
    policy = parse("version: 1\nrules: [{id: r, when: 'depth > 0', outcome: reject}]")
    assert policy.outcome_of(asked(item("x"), depth=1)).outcome == "reject"
    assert policy.outcome_of(asked(item("x"))).outcome == "ask"


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("agent: tell*", True),
        ("agent: [x, teller]", True),
        ("agent: x", False),
        ("user: ada", True),
        ("user: [bob]", False),
        ("kind: confirmation", True),
        ("kind: [input]", False),
        ("roles: [boss, clerk]", True),
        ("roles: boss", False),
        ("tool: 'ab'", False),
        ("tool: 'a[b]?'", True),
        ("tool: '*'", True),
    ],
)
def test_a_rule_matches_by_names_and_patterns(match: str, matches: bool) -> None:
    policy = parse(f"version: 1\nrules: [{{id: r, match: {{{match}}}, outcome: approve}}]")
    question = asked(item("a[b]?"), roles=["clerk"])
    assert policy.outcome_of(question).is_automatic is matches


def test_without_a_policy_the_requester_decides_without_a_deadline() -> None:
    ruling = Policy().outcome_of(asked(item("rm")))
    assert (ruling.outcome, ruling.rule_id, ruling.policy.version) == ("ask", "default", 0)
    assert [each.users for each in ruling.deciders] == [["requester"]]
    assert (ruling.need, ruling.expires_at, ruling.items[0].edit) == (1, None, ["*"])


def test_the_digest_of_a_policy_is_that_of_its_content() -> None:
    assert parse(TEXT).digest == parse("# a comment\n" + TEXT).digest
    assert parse(TEXT).digest != parse(TEXT.replace("1000.0", "1001.0")).digest


ABSENT = """
version: 1
rules:
  - {id: named, match: {tool: pay}, outcome: ask, need: 2, deciders: {users: [ann, bob]},
     deadline: 1d, escalate: [{after: 1h, to: {users: [ann]}}]}
  - {id: others, match: {tool: buy}, outcome: ask, deciders: {users: [ann, bob], not: [requester]}}
  - {id: role, match: {tool: sell}, outcome: ask, deciders: {roles: [finance]}}
absences: [{user: ann, delegate: %s, from: 2026-11-22T14:00:00Z, until: 2026-11-23T00:00:00Z}]
"""


@pytest.mark.parametrize(
    ("tool", "delegate", "users", "when"),
    [
        ("pay", "lee", ["lee", "bob"], NOW),
        ("pay", "lee", ["ann", "bob"], NOW - timedelta(minutes=1)),
        ("pay", "lee", ["ann", "bob"], NOW + timedelta(hours=10)),
        ("pay", "bob", ["ann", "bob"], NOW),  # two people must decide, so bob is no second one
        ("buy", "ada", ["ann", "bob"], NOW),  # the requester
        ("buy", "eve", ["ann", "bob"], NOW),  # who started the run
        ("sell", "lee", [], NOW),
    ],
)
def test_a_delegate_takes_the_place_of_a_named_user_for_a_time(
    tool: str, delegate: str, users: list[str], when: datetime
) -> None:
    question = asked(item(tool), now=when, started_by=["eve"])
    ruling = parse(ABSENT % delegate).outcome_of(question)
    assert [each.users for each in ruling.deciders] == [users]
    stands_in = tool == "pay" and when == NOW
    assert [each.to and each.to.users for each in ruling.escalate] == (
        [[delegate if stands_in else "ann"]] if tool == "pay" else []
    )


@pytest.mark.parametrize(
    ("away", "deciders", "users"),
    [
        ("ann>lee lee>kim", "[ann, bob]", ["kim", "bob"]),
        ("lee>kim ann>lee", "[ann, bob]", ["kim", "bob"]),  # in any order
        ("ann>lee lee>ann", "[ann, bob]", ["ann", "bob"]),  # a circle, in which nobody is there
        ("ann>bob bob>kim", "[ann, bob]", ["kim", "bob"]),
        ("ann>eve ann>lee", "[ann, bob]", ["lee", "bob"]),  # eve started the run
        ("ann>eve eve>lee", "[ann, bob]", ["ann", "bob"]),  # nobody stands in for eve either
        ("ada>lee", "[ada, bob]", ["ada", "bob"]),  # ada's own request, which ada may not decide
    ],
)
def test_absences_in_a_row_give_nobody_a_right_that_the_first_has_not(
    away: str, deciders: str, users: list[str]
) -> None:
    assert _present(away, f"{deciders}, not: [requester]") == users


def test_a_delegate_who_is_the_requester_is_not_counted_twice() -> None:
    """Otherwise two people would have to decide, and only one may."""
    assert _present("ann>ada", "[ann, requester]") == ["ann", "requester"]


def _present(away: str, users: str) -> list[str]:
    """Return the users who may decide a request of ada, for absences such as `ann>lee`."""
    time = "from: 2026-11-22T14:00:00Z, until: 2026-11-23T00:00:00Z"
    pairs = (each.split(">") for each in away.split())
    absences = ", ".join(f"{{user: {user}, delegate: {to}, {time}}}" for user, to in pairs)
    text = f"version: 1\ndefault: {{deciders: {{users: {users}}}}}\nabsences: [{absences}]\n"
    [deciders] = parse(text).outcome_of(asked(item("pay"), started_by=["eve"])).deciders
    return deciders.users


@pytest.mark.parametrize(
    ("terms", "later"),
    [
        ("deadline: 2h, remind: [1h]", None),
        ("escalate: [{after: 2h, to: {roles: [leads]}}]", None),  # times are not compared
        ("", []),
        ("escalate: [{after: 1h, to: {}}]", [([], "decide")]),  # everybody
    ],
)
def test_a_trial_names_a_policy_that_lets_others_decide_later(
    terms: str, later: list[tuple[list[str], str]] | None
) -> None:
    question, leads = asked(item("pay")), "escalate: [{after: 1h, to: {roles: [leads]}}]"
    before, after = (
        parse(f"version: 1\ndefault: {{deciders: {{roles: [finance]}}, {each}}}").outcome_of(
            question
        )
        for each in (leads, f"{leads}, {terms}" if terms.startswith("deadline") else terms)
    )
    record = ApprovalRecord.model_validate(
        {
            **dict.fromkeys(("approval_id", "run_id", "agent", "session_id", "user_id"), "x"),
            **{"leg": 1, "digest": "d", "items": [], "requested_at": "", "updated_at": ""},
            **before.fields(),
        }
    )
    found = compared(record, after)
    said = found and [(each["roles"], each["scope"]) for each in found["would_be"]["escalations"]]
    assert said == later
