"""What happens between an event and a request, without I/O."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import orjson
import pytest
from standardwebhooks.webhooks import Webhook

from penstock.expressions import Budget
from penstock_automations.actions.webhook.breaker import (
    FAILURES,
    MAX_OPEN_S,
    PROBE_S,
    Breaker,
    Rate,
)
from penstock_automations.actions.webhook.exchange import (
    Answer,
    NoAnswer,
    is_up,
    retry_after_s,
    verdict,
)
from penstock_automations.actions.webhook.preparing import body_of, signed
from penstock_automations.delivery.one_delivery import MAX_RETRY_AFTER_S, delay_s
from penstock_automations.jobs.job import EventSource, Job, TriggerSource
from penstock_automations.matching.facts import RunFacts
from penstock_automations.matching.rule_matches import depth_refusal, matched, may_act
from penstock_automations.rules.check import InvalidRule, read_rule
from penstock_automations.rules.hidden import with_secrets
from penstock_automations.rules.index import RuleIndex
from penstock_automations.rules.model import MANY, Rule, types_of
from penstock_automations.rules.records import (
    CompiledRule,
    Owner,
    RuleRecord,
    compile_rule,
    event_of,
)
from penstock_automations.rules.secrets import check_secret, new_secret
from support.fakes.receiver import SECRET

RUN_ID = "01a1f8c3-1007-77dc-be51-6f2ae3b9b92e"
WEBHOOK = {"url": "https://hook.example/x", "secrets": [SECRET]}
GOOD = {"id": "good", "subjects": ["llm.tool_call"], "action": {"webhook": WEBHOOK}}
EVENT: dict[str, Any] = {
    "run_id": RUN_ID,
    "timestamp": "2026-11-22T10:00:00.000Z",
    "sequence": 3,
    "event": {"category": "llm", "action": "tool_call"},
    "data": {"tool": "delete_file", "args": {"path": "/x"}},
    "session_id": "s1",
    "leg": 1,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good rule with another value at a path such as `action.webhook.url`."""
    rule: dict[str, Any] = orjson.loads(orjson.dumps(GOOD))
    *parents, last = path.split(".")
    inner = rule
    for each in parents:
        inner = inner[each]
    inner[last] = value
    return rule


@pytest.mark.parametrize(
    ("path", "value", "field", "reason"),
    [
        ("id", "Not A Token", "id", "use up to 63 of a to z"),
        ("subjects", [], "subjects", "exactly one trigger"),
        ("subjects", ["llm.nope"], "subjects", "there are no events 'llm.nope'"),
        ("subjects", ["llm"], "subjects", "category.action"),
        ("subjects", ["lifecycle.complete"], "subjects", 'did you mean "lifecycle.completed"?'),
        ("subjects", "llm.*", "subjects", "must be a list"),
        ("subjects", ["*.*"], "subjects", "there are no events"),
        ("subjects", [">"], "subjects", "there are no events"),
        ("where", "evnt.data == 1", "where", "'evnt.data': did you mean \"event\"?"),
        ("where", "event.sequence", "where", "compare it"),
        ("wher", "true", "wher", 'there is no such field: did you mean "where"?'),
        ("action.webhok", {}, "action.webhok", 'there is no such field: did you mean "webhook"?'),
        ("payload", "some", "payload", "'full', 'reference' or 'a2a'"),
        ("order", "session", "order", "'none' or 'run'"),
        ("action", {}, "action", "exactly one action of webhook, run, decide"),
        ("action.webhook.url", "ftp://x.example", "action.webhook.url", "https://"),
        ("action.webhook.url", "https://", "action.webhook.url", "no host"),
        ("action.webhook.url", "https://u:p@x.example", "action.webhook.url", "use `auth`"),
        ("action.webhook.url", "https://x.example/#a", "action.webhook.url", "fragment"),
        ("action.webhook.url", "https://x.example/\r\nx: y", "action.webhook.url", "control"),
        ("action.webhook.url", "https://x.example:99999", "action.webhook.url", "not a URL"),
        ("action.webhook.secrets", ["secret"], "action.webhook.secrets", "begins with whsec_"),
        ("action.webhook.secrets", ["whsec_AAAA"], "action.webhook.secrets", "24 to 64 bytes"),
        ("action.webhook.secrets", ["whsec_?"], "action.webhook.secrets", "not base64"),
        ("action.webhook.secrets", [SECRET] * 3, "action.webhook.secrets", "at most 2"),
        ("action.webhook.timeout_s", 0.1, "action.webhook.timeout_s", "greater than or equal"),
        (
            "action.webhook.auth",
            {},
            "action.webhook.auth",
            "give one of bearer, basic, header, query",
        ),
        (
            "action.webhook.auth",
            {"bearer": "b", "header": {"name": "authorization", "value": "Basic x"}},
            "action.webhook.auth",
            "they are the same",
        ),
        (
            "action.webhook.auth",
            {"header": {"name": "Webhook-Id", "value": "x"}},
            "action.webhook.auth.header.name",
            "set by Penstock",
        ),
        (
            "action.webhook.auth",
            {"header": {"name": "x", "value": "a\r\nb: c"}},
            "action.webhook.auth.header.value",
            "pattern",
        ),
    ],
)
def test_a_wrong_rule_is_refused_with_field_and_reason(
    path: str, value: Any, field: str, reason: str
) -> None:
    read_rule(GOOD, Rule)
    with pytest.raises(InvalidRule) as refused:
        read_rule(changed(path, value), Rule)
    [problem] = refused.value.problems
    assert problem["field"].removesuffix(".0") == field
    assert reason in problem["reason"]
    assert "secret'" not in str(refused.value), "the input may be a secret"


TOKEN = "pht_0123456789abcdefghijklmn"


@pytest.mark.parametrize(
    ("trigger", "field", "reason"),
    [
        ({}, "subjects", "exactly one trigger of subjects, schedule, hook"),
        ({"subjects": ["llm.*"], "hook": {}}, "subjects", "exactly one trigger"),
        ({"schedule": {"cron": "* * * * *"}, "hook": {}}, "subjects", "exactly one trigger"),
        ({"hook": {}, "order": "run"}, "order", "only events of runs have an order"),
        ({"schedule": {"cron": "* * * * * *"}}, "schedule.cron", "five fields"),
        ({"schedule": {"cron": "0 9 * *"}}, "schedule.cron", "this has 4"),
        ({"schedule": {"cron": "0 25 * * *"}}, "schedule.cron", "Bad hour"),
        ({"schedule": {"cron": "@daily"}}, "schedule.cron", "five fields"),
        ({"schedule": {"cron": "0 0 31 2 *"}}, "schedule.cron", "Bad day-of-month"),
        ({"schedule": {"cron": "* * * * *" + " " * 200}}, "schedule.cron", "at most 200"),
        (
            {"schedule": {"cron": "0 9 * * *", "timezone": "Rome"}},
            "schedule.timezone",
            "no time zone 'Rome'",
        ),
        (
            {"schedule": {"cron": "0 9 * * *", "timezone": "Europe"}},
            "schedule.timezone",
            "no time zone",
        ),
        ({"schedule": {"cron": "0 9 * * *", "timezone": ""}}, "schedule.timezone", "no time zone"),
        (
            {"schedule": {"cron": "0 9 * * *", "timezone": "../UTC"}},
            "schedule.timezone",
            "no time zone",
        ),
        ({"schedule": {"cron": "0 9 * * *", "catch_up_s": -1}}, "schedule.catch_up_s", "greater"),
        ({"hook": {"secrets": ["whsec_AAAA"]}}, "hook.secrets.0", "24 to 64 bytes"),
        ({"hook": {"secrets": [SECRET], "tokens": [TOKEN]}}, "hook", "not both"),
        ({"hook": {"secrets": [SECRET], "token_in_url": True}}, "hook", "for tokens"),
        ({"hook": {"tokens": ["short"]}}, "hook.tokens.0", "at least 24"),
        ({"hook": {"tokens": ["a token with spaces in the middle"]}}, "hook.tokens.0", "pattern"),
    ],
)
def test_a_rule_has_exactly_one_trigger_and_a_wrong_one_is_refused(
    trigger: dict[str, Any], field: str, reason: str
) -> None:
    fields = {name: value for name, value in GOOD.items() if name != "subjects"}
    with pytest.raises(InvalidRule) as refused:
        read_rule({**fields, **trigger}, Rule)
    [problem] = refused.value.problems
    assert problem["field"] == field
    assert reason in problem["reason"]
    for secret in (SECRET, TOKEN):
        assert secret not in str(refused.value)


def test_a_hook_without_secrets_gets_one_and_keeps_what_it_has() -> None:
    def hooked(**fields: Any) -> Rule:
        return read_rule({"id": "h", "hook": fields, "action": {"webhook": WEBHOOK}}, Rule)

    made = with_secrets(hooked(), None)
    assert made.hook is not None
    [secret] = made.hook.secrets
    check_secret(secret)
    assert with_secrets(hooked(), made) == made
    with_token = with_secrets(hooked(token_in_url=True), None)
    assert with_token.hook is not None
    assert with_token.hook.secrets == []
    assert len(with_token.hook.tokens[0]) >= 24
    assert with_secrets(hooked(token_in_url=True), with_token) == with_token
    # A stored rule is parsed again as it was stored.
    for each in (made, with_token):
        assert Rule.model_validate(each.model_dump()) == each


def test_a_condition_that_cannot_be_compiled_has_a_position() -> None:
    with pytest.raises(InvalidRule) as refused:
        read_rule(changed("where", "true &&\n nope(1)"), Rule)
    [problem] = refused.value.problems
    assert (problem["line"], problem["column"]) == (2, 6)


def test_a_category_does_not_include_events_that_are_many() -> None:
    assert "llm.tool_call" in types_of("llm.*")
    assert not types_of("llm.*") & MANY
    assert types_of("llm.stream") == {"llm.stream"}


def test_a_new_secret_is_text_that_n8n_can_hold() -> None:
    secret = new_secret()
    check_secret(secret)
    assert secret != new_secret()


def test_the_signatures_are_those_of_the_reference_library() -> None:
    second = new_secret()
    now = datetime.now(UTC).timestamp()
    headers = signed([SECRET, second], "id", now, b'{"a":"\xc3\xa9"}')
    assert headers["webhook-signature"].count("v1,") == 2
    for secret in (SECRET, second):
        Webhook(secret).verify(b'{"a":"\xc3\xa9"}', headers)
    # the example of the specification
    headers = signed(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_body_carries_the_event_byte_for_byte_or_a_reference() -> None:
    event = orjson.dumps(EVENT)
    full = body_of("llm.tool_call", event, payload="full", max_bytes=10_000)
    assert event in full
    assert orjson.loads(full) == {
        "type": "llm.tool_call",
        "timestamp": EVENT["timestamp"],
        "data": EVENT,
    }
    reference = orjson.loads(
        body_of("llm.tool_call", event, payload="reference", max_bytes=10_000)
    )["data"]
    assert reference["run_id"] == RUN_ID
    assert "data" not in reference
    assert "omitted" not in reference
    large = body_of(
        "llm.tool_call", orjson.dumps({**EVENT, "data": "x" * 9000}), payload="full", max_bytes=5000
    )
    assert len(large) < 500
    assert "at most 5000" in orjson.loads(large)["data"]["omitted"]


@pytest.mark.parametrize(
    ("result", "outcome", "code", "up"),
    [
        (Answer(200, {}, b"ok"), "delivered", "", True),
        (Answer(204, {}, b"ok"), "delivered", "", True),
        (Answer(200, {}, b"no"), "failed", "unexpected_answer", True),
        (Answer(301, {}, b"ok"), "failed", "http_301", True),
        (Answer(400, {}, b"ok"), "failed", "http_400", True),
        (Answer(404, {}, b"ok"), "failed", "http_404", True),
        (Answer(408, {}, b"ok"), "failed", "http_408", False),
        (Answer(410, {}, b"ok"), "gone", "http_410", True),
        (Answer(429, {}, b"ok"), "failed", "http_429", False),
        (Answer(500, {}, b"ok"), "failed", "http_500", False),
        (Answer(799, {}, b"ok"), "failed", "http_799", False),
        (NoAnswer("timeout", "late"), "failed", "timeout", False),
        (NoAnswer("connection", "gone"), "failed", "connection", False),
        (NoAnswer("refused_address", "inside"), "failed", "refused_address", True),
    ],
)
def test_only_a_complete_2xx_answer_with_the_expected_text_delivers(
    result: Answer | NoAnswer, outcome: str, code: str, up: bool
) -> None:
    meant = verdict(result, "ok", 0)
    assert (meant.outcome, meant.code, is_up(result)) == (outcome, code, up)


@pytest.mark.parametrize(
    ("status", "outcome", "code"),
    [
        (404, "delivered", ""),
        (301, "delivered", ""),
        (410, "delivered", ""),
        (200, "failed", "http_200"),
        (500, "failed", "http_500"),
    ],
)
def test_a_call_with_statuses_expects_only_these(status: int, outcome: str, code: str) -> None:
    meant = verdict(Answer(status, {}, b""), None, 0, [301, 404, 410])
    assert (meant.outcome, meant.code) == (outcome, code)
    assert outcome == "delivered" or "not 301 or 404 or 410" in meant.text


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("120", 120),
        (" 0 ", 0),
        ("-5", None),
        ("soon", None),
        ("9" * 400, 999_999_999),
        (format_datetime(datetime.fromtimestamp(1_000_060, UTC), usegmt=True), 60),
        (format_datetime(datetime.fromtimestamp(999_000, UTC), usegmt=True), 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, 1_000_000) == seconds


def test_delays_grow_vary_and_end() -> None:
    delays = (5.0, 300.0)
    assert delay_s(1, delays, None, 0.5) == 5
    assert delay_s(1, delays, None, 0.0) == pytest.approx(4.5)
    assert delay_s(2, delays, None, 1.0) == pytest.approx(330)
    assert delay_s(3, delays, None, 0.5) is None
    assert delay_s(1, delays, 60, 0.5) == 60
    assert delay_s(1, delays, 10**9, 0.5) == MAX_RETRY_AFTER_S
    assert delay_s(3, delays, 60, 0.5) is None, "Retry-After adds no attempt"


def test_a_breaker_opens_probes_and_closes() -> None:
    breaker = Breaker(30)
    for _ in range(FAILURES - 1):
        breaker.record_failure(0)
    breaker.record_success()
    for _ in range(FAILURES):
        assert breaker.admit(0) == 0
        breaker.record_failure(0)
    assert breaker.admit(1) == 29
    assert breaker.admit(30) == 0, "one request probes the endpoint"
    assert 0 < breaker.admit(30) <= PROBE_S, "and no second one, which need not wait long"
    breaker.record_failure(31)
    assert breaker.admit(31) == 60, "the next time is twice as long"
    assert breaker.admit(91) == 0
    breaker.record_success()
    assert breaker.admit(91) == 0


def test_a_breaker_opens_for_ten_minutes_at_most_and_forgets_a_lost_probe() -> None:
    breaker = Breaker(30)
    now = 0.0
    for _ in range(FAILURES):
        breaker.record_failure(now)
    for _ in range(10):
        now += breaker.admit(now)
        assert breaker.admit(now) == 0
        breaker.record_failure(now)
    assert breaker.admit(now) == MAX_OPEN_S
    now += MAX_OPEN_S
    assert breaker.admit(now) == 0
    assert breaker.admit(now + MAX_OPEN_S) == 0, "the probe's process may have ended"


def test_a_rate_admits_a_burst_and_then_its_rate() -> None:
    rate = Rate(2)
    assert [rate.admit(0) for _ in range(3)] == [0, 0, 0.5]
    assert rate.admit(0.5) == 0
    assert rate.admit(0.5) == 0.5
    assert [rate.admit(100) for _ in range(3)] == [0, 0, 0.5]


def compiled(owner: str = "u1", **fields: Any) -> CompiledRule:
    """A rule as the store has it."""
    all_users = fields.pop("all_users", False)
    record = RuleRecord(
        rule=read_rule({**GOOD, **fields}, Rule),
        uid="1",
        owner=Owner(user_id=owner),
        all_users=all_users,
        begins={"EVENTS": 10},
        created_at="",
        updated_at="",
    )
    return compile_rule(record, 1)


def test_one_rule_that_fails_has_no_effect_on_the_others() -> None:
    rules = [
        compiled(id="yes", where='event.data.tool == "delete_file"'),
        compiled(id="bad", where="1 / (event.sequence - 3) == 1"),
        compiled(id="missing", where='event.data["nope"] == 1'),
        compiled(id="no", where="event.sequence == 4"),
        compiled(id="typed", where='event.type == "llm.tool_call"'),
        compiled(id="always"),
    ]
    event = event_of(EVENT)
    found = [each for rule in rules if (each := matched(rule, event, Budget())) is not None]
    assert [each.rule.id for each in found] == ["yes", "bad", "typed", "always"]
    assert [each.rule.id for each in found if each.failure] == ["bad"]


def found_by_index(rules: list[CompiledRule], event: dict[str, Any], owner: str = "u1") -> set[str]:
    index = RuleIndex(rules)
    return {each.id for each in index.candidates("llm.tool_call", owner, event)}


def test_rules_are_found_by_the_text_that_their_condition_requires() -> None:
    rules = [
        compiled(id="tool", where='event.type == "llm.tool_call" && event.data.tool == "delete"'),
        compiled(id="other", where='event.data.tool == "move"'),
        compiled(id="none", where="event.sequence == 4"),
        compiled(id="always"),
        compiled(id="paused", enabled=False),
        compiled(id="stranger", owner="u2"),
        compiled(id="everybody", owner="u2", all_users=True),
        compiled(id="typed", subjects=["llm.stream"]),
    ]
    usual = {"none", "always", "everybody"}
    typed = {"type": "llm.tool_call"}
    assert found_by_index(rules, {**typed, "data": {"tool": "delete"}}) == usual | {"tool"}
    assert found_by_index(rules, {**typed, "data": {"tool": "move"}}) == usual | {"other"}
    assert found_by_index(rules, {**typed, "data": {"tool": 5}}) == usual
    assert found_by_index(rules, {**typed, "data": {}}) == usual, "a missing field: does not hold"
    failing = {**typed, "data": "text"}
    assert found_by_index(rules, failing) == usual | {"tool", "other"}, "their owner hears of it"
    moved = {**typed, "data": {"tool": "move"}}
    assert found_by_index(rules, moved, "u3") == {"everybody"}


def test_a_thousand_rules_for_other_texts_cost_one_look_up() -> None:
    rules = [compiled(id=f"r{n}", where=f'event.session_id == "a{n}"') for n in range(1000)]
    index, event = RuleIndex(rules), {"session_id": "a7"}
    assert [each.id for each in index.candidates("llm.tool_call", "u1", event)] == ["r7"]
    started = time.process_time()
    for _ in range(1000):
        list(index.candidates("llm.tool_call", "u1", event))
    assert time.process_time() - started < 0.2, "less than 200 µs for each event"


def test_a_rule_sees_events_after_its_begin_while_it_is_enabled() -> None:
    rule = compiled()
    assert not rule.waits_for_event("llm.tool_call", "EVENTS", 10)
    assert rule.waits_for_event("llm.tool_call", "EVENTS", 11)
    assert rule.waits_for_event("llm.tool_call", "EVENTS_1", 1), "a shard that was made later"
    assert not rule.waits_for_event("llm.stream", "EVENTS", 11)
    assert not compiled(enabled=False).waits_for_event("llm.tool_call", "EVENTS", 11)


OTHERS: dict[str, Any] = {
    "event": {"category": "automation", "action": "completed"},
    "data": {"automation": "other", "depth": 2},
}
DEEP: dict[str, Any] = {**OTHERS, "data": {"automation": "other", "depth": 3}}
OWN = {"event": {"category": "automation", "action": "completed"}, "data": {"automation": "good"}}


@pytest.mark.parametrize(
    ("rule", "facts", "body", "may"),
    [
        (compiled(), RunFacts("u1"), EVENT, True),
        (compiled(), RunFacts("u2"), EVENT, False),
        (compiled(all_users=True), RunFacts("u2"), EVENT, True),
        (compiled(), RunFacts("u1", ("good",), 1), EVENT, False),
        (compiled(loops=True), RunFacts("u1", ("good",), 1), EVENT, True),
        (compiled(loops=True), RunFacts("u1", ("good",) * 4, 4), EVENT, True),
        (compiled(), RunFacts("u1", ("a", "b", "c"), 3), EVENT, True),
        (compiled(), RunFacts("u1"), OWN, False),
        (compiled(id="other"), RunFacts("u1"), OWN, True),
        (compiled(), RunFacts("u1"), OTHERS, True),
        (compiled(loops=True), RunFacts("u1"), DEEP, False),
    ],
)
def test_a_rule_acts_with_its_owners_rights_and_in_no_loop(
    rule: CompiledRule, facts: RunFacts, body: dict[str, Any], may: bool
) -> None:
    assert may_act(rule, facts, body) is may


@pytest.mark.parametrize(
    ("facts", "body", "reason"),
    [
        (RunFacts("u1", ("a", "b", "c"), 3), EVENT, None),
        (RunFacts("u1", ("a", "b", "c", "d"), 4), EVENT, "4 rules led to this event"),
        (RunFacts("u1", (), depth=4), EVENT, "4 rules led to this event"),
        (RunFacts("u1"), OTHERS, None),
        (RunFacts("u1"), DEEP, "4 rules led to this event"),
        (RunFacts("u1", ("a", "b", "c"), 3), OTHERS, "4 rules led to this event"),
    ],
)
def test_an_event_to_which_four_rules_led_triggers_nothing(
    facts: RunFacts, body: dict[str, Any], reason: str | None
) -> None:
    found = depth_refusal(facts, body)
    assert found == reason or (reason is not None and reason in str(found))


EVENT_JOB = Job(
    "rule",
    2,
    "u",
    "llm.tool_call",
    EventSource(RUN_ID, 3, event=44, raw=40),
    ordered=True,
    attempt=2,
)
HOOK_JOB = Job(
    "rule",
    1,
    "u",
    "hook.received",
    TriggerSource("hook", "hook-5f", {"timestamp": "t", "event": {}, "data": {"n": 1}}),
)


@pytest.mark.parametrize("job", [EVENT_JOB, HOOK_JOB])
def test_a_job_is_read_as_it_was_written(job: Job) -> None:
    assert Job.parse(job.dump()) == job
    assert Job.parse(orjson.dumps({**orjson.loads(job.dump()), "later": 1})) == job
    ids = {job.message_id, job.attempt_after(job.attempt, 0).message_id, job.deferred(0).message_id}
    assert len(ids | {job.replayed().message_id}) == 4
    assert job.delivery_id == job.replayed().attempt_after(1, 0).delivery_id


@pytest.mark.parametrize("job", [EVENT_JOB, HOOK_JOB])
def test_receivers_get_an_id_without_dots_and_chosen_parts_the_same_at_each_attempt(
    job: Job,
) -> None:
    new = replace(job, dotted=False)
    later = Job.parse(new.replayed().attempt_after(1, 0).dump())
    assert new.webhook_id == later.webhook_id
    assert re.fullmatch(r"msg_[A-Za-z0-9_-]+", new.webhook_id)
    assert job.rule not in new.webhook_id
    other = replace(new, uid="another")
    assert other.webhook_id != new.webhook_id, "a later rule with the same id"


@pytest.mark.parametrize("job", [EVENT_JOB, HOOK_JOB])
def test_a_receiver_that_has_recorded_a_dotted_id_gets_this_id_again(job: Job) -> None:
    stored = orjson.loads(replace(job, dotted=False).dump())
    del stored["dotted"]  # as jobs, records and dead letters were stored before
    before = Job.parse(orjson.dumps(stored))
    assert before.webhook_id == f"{job.rule}.{job.source.id}"
    assert Job.parse(before.replayed().dump()).webhook_id == before.webhook_id


def test_the_id_of_a_triggers_job_is_the_rule_and_the_triggers_id() -> None:
    assert HOOK_JOB.delivery_id == "rule.hook-5f"
    assert HOOK_JOB.subject == "delivery.rule.hook-5f"
    assert HOOK_JOB.run_id is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        EVENT_JOB.dump().replace(b"44", b'"x"'),
        EVENT_JOB.dump().replace(b'"event"', b'"other"'),
        EVENT_JOB.dump().replace(RUN_ID.encode(), b"no-run"),
        HOOK_JOB.dump().replace(b"hook-5f", b"a.b"),
        HOOK_JOB.dump().replace(b'"body":{', b'"body":[{').replace(b"}}}", b"}}]}"),
    ],
)
def test_what_is_no_job_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not a job"):
        Job.parse(payload)
