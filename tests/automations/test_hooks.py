"""A request to a hook fires its rule once; a refused caller learns nothing about the rule."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from standardwebhooks.webhooks import Webhook
from starlette.requests import Request

from penstock.bus import streams
from penstock.bus.state import deadletters
from penstock.web.problems import Problem
from penstock_automations.api.hooks import Hooks
from penstock_automations.matching.evaluations import MAX_SLOW
from penstock_automations.rules.check import InvalidRule, read_rule
from penstock_automations.rules.hidden import with_secrets
from penstock_automations.rules.model import Hook, Rule
from penstock_automations.rules.records import Owner, RuleRecord, compile_rule
from penstock_automations.rules.secrets import new_secret, new_token
from penstock_automations.rules.store import CurrentRules
from penstock_automations.triggers.hook_request import (
    WINDOW_S,
    Check,
    HookRequest,
    Refusal,
    trigger_id,
)
from support.drive.automations import Automations, automations
from support.drive.waiting import eventually
from support.fakes.clocks import server_steps
from support.fakes.receiver import SECRET as OUT_SECRET
from support.fakes.receiver import answers, hangs
from support.real.nats import NatsServer

NEW, OLD, OTHERS = new_secret(), new_secret(), new_secret()
TOKEN, NEXT_TOKEN = new_token(), new_token()
BODY = b'{"order": 7, "card": "4111-secret"}'
NOW = datetime(2026, 11, 22, 14, tzinfo=UTC)


def signed(secret: str, body: bytes = BODY, id: str = "msg_1", at: datetime | None = None) -> Any:
    """The headers of a request, signed by the reference library."""
    at = at if at is not None else datetime.now(UTC)
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(id, at, body.decode()),
    }


def request(secret: str = NEW, **changes: Any) -> HookRequest:
    headers = signed(secret, at=NOW)
    given = {
        "webhook_id": headers["webhook-id"],
        "timestamp": headers["webhook-timestamp"],
        "signature": headers["webhook-signature"],
        **changes,
    }
    return HookRequest(**given)


def refusal(hook: Hook, given: HookRequest, at: float, body: bytes = BODY) -> Refusal | None:
    check = Check(hook, given)
    for byte in body:
        check.add(bytes([byte]))
    return check.refusal(at)


SIGNED = Hook(secrets=[NEW, OLD])
WITH_TOKEN = Hook(tokens=[NEXT_TOKEN, TOKEN])
IN_URL = Hook(tokens=[TOKEN], token_in_url=True)
AT = NOW.timestamp()
GOOD_SIGNATURE = signed(NEW, at=NOW)["webhook-signature"]


@pytest.mark.parametrize(
    ("hook", "given", "at", "expected"),
    [
        (SIGNED, request(), AT, None),
        # signed with the old secret, which is still valid during a rotation
        (SIGNED, request(OLD), AT, None),
        (SIGNED, request(signature=f"v1,AAAA v2,x {GOOD_SIGNATURE}"), AT, None),
        (SIGNED, request(), AT + WINDOW_S, None),
        (SIGNED, request(), AT - WINDOW_S, None),
        (SIGNED, request(), AT + WINDOW_S + 1, "timestamp"),  # replayed after the window
        (SIGNED, request(), AT - WINDOW_S - 1, "timestamp"),
        (SIGNED, request(OTHERS), AT, "signature"),
        (SIGNED, request(webhook_id="msg_2"), AT, "signature"),
        (SIGNED, request(webhook_id=None), AT, "signature"),
        (SIGNED, request(webhook_id=None, idempotency_key="msg_1"), AT, "signature"),
        (SIGNED, request(timestamp=str(int(AT) + 1)), AT, "signature"),
        (SIGNED, request(timestamp=f"{int(AT)}.0"), AT, "signature"),
        (SIGNED, request(timestamp="nan"), AT, "signature"),
        (SIGNED, request(timestamp="9" * 40), AT, "signature"),
        (SIGNED, request(timestamp=None), AT, "signature"),
        (SIGNED, request(signature=None), AT, "signature"),
        (SIGNED, request(signature="v1,"), AT, "signature"),
        (SIGNED, request(signature=GOOD_SIGNATURE.replace("v1,", "v1a,")), AT, "signature"),
        (SIGNED, request(signature=("v1,AAAA " * 50) + GOOD_SIGNATURE), AT, "signature"),
        (SIGNED, request(webhook_id='m.1.{"a":"'), AT, "id"),
        (SIGNED, request(webhook_id="x" * 257), AT, "id"),
        (SIGNED, HookRequest(bearer=TOKEN), AT, "signature"),
        (WITH_TOKEN, HookRequest(bearer=TOKEN), AT, None),
        (WITH_TOKEN, HookRequest(bearer=NEXT_TOKEN), AT, None),
        (WITH_TOKEN, HookRequest(bearer=f"{TOKEN}x"), AT, "token"),
        (WITH_TOKEN, HookRequest(bearer=""), AT, "token"),
        (WITH_TOKEN, HookRequest(), AT, "token"),
        (WITH_TOKEN, HookRequest(token_in_url=TOKEN), AT, "token"),
        (WITH_TOKEN, request(), AT, "token"),
        (IN_URL, HookRequest(token_in_url=TOKEN), AT, None),
        (IN_URL, HookRequest(token_in_url="€"), AT, "token"),
        (IN_URL, HookRequest(bearer=NEXT_TOKEN, token_in_url=TOKEN), AT, "token"),
    ],
)
def test_a_request_is_accepted_by_its_signature_or_its_token(
    hook: Hook, given: HookRequest, at: float, expected: Refusal | None
) -> None:
    assert refusal(hook, given, at) == expected


HOOKS = {
    "signed": SIGNED,
    "one-secret": Hook(secrets=[NEW]),
    "token": WITH_TOKEN,
    "in-url": IN_URL,
    "no-hook": None,
    "github": Hook(signature="github", secrets=["a-secret-of-github"]),
    "stripe": Hook(signature="stripe", secrets=["a-secret-of-stripe"]),
}


async def test_a_refusal_takes_the_same_work_for_every_rule_and_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A caller can measure a difference of 0.35 ms, which one log line takes."""
    hashed = 0
    new = hmac.new

    def counted(key: bytes, message: bytes, digest: Any) -> Any:
        class Counted:
            def __init__(self) -> None:
                self.hmac = new(key, message, digest)
                self.digest = self.hmac.digest

            def update(self, piece: bytes) -> None:
                nonlocal hashed
                hashed += len(piece)
                self.hmac.update(piece)

        return Counted()

    monkeypatch.setattr("penstock_automations.triggers.hook_request.hmac.new", counted)
    # No second passes. On a slow machine, a later refusal would write another log line, whose calls
    # would be counted.
    frozen = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr("penstock_automations.api.hooks.time", frozen)
    rules = CurrentRules(SimpleNamespace(on_reconnect=lambda _: None))  # type: ignore[arg-type]
    monkeypatch.setattr(rules, "refresh", AsyncMock())
    for id, hook in HOOKS.items():
        triggers = {"hook": hook.model_dump()} if hook else {"subjects": ["llm.*"]}
        action = {"webhook": {"url": "https://example.com/", "secrets": [OUT_SECRET]}}
        stored = {
            "rule": {"id": id, "action": action, **triggers},
            "uid": id,
            "owner": {"user_id": "u1"},
        }
        record = RuleRecord.model_validate({**stored, "created_at": "", "updated_at": ""})
        rules._rules[id] = compile_rule(record, 1)
    served = Hooks(SimpleNamespace(clock=time), rules, MagicMock(), 100_000)  # type: ignore[arg-type]
    body = b"[%s]" % (b"0" * 1000)

    async def calls(id: str, headers: dict[str, str]) -> int:
        """Return how many functions are called to answer a request."""
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": body[:500], "more_body": True},
            {"type": "http.request", "body": body[500:], "more_body": False},
        ]

        async def receive() -> Any:
            return messages.pop(0)

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope: dict[str, Any] = {"type": "http", "path_params": {"rule_id": id}, "headers": raw}
        scope |= {"query_string": b"", "method": "POST", "path": "/", "client": None}
        count = 0

        def on_event(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(on_event)
        try:
            with pytest.raises(Problem) as raised:
                await served.receive(Request(scope, receive))
        finally:
            sys.setprofile(None)
        assert raised.value.status == 404
        return count

    many = JSON | {"stripe-signature": "v1=0," * 2000, "webhook-signature": "v1,0 " * 2000}
    for headers in (signed(OTHERS, body), bearer(NEXT_TOKEN + "x"), JSON, many):
        found = {}
        for id in (*HOOKS, "nobody"):
            await calls(id, headers)  # the first request of each kind makes its metric
            counts = []
            for _ in range(3):
                hashed = 0
                counts.append(await calls(id, headers))
                assert hashed == 2 * len(body)
            # A collection of garbage may call the finalizers of others' objects meanwhile.
            found[id] = min(counts)
        # The rest of the difference, a few short calls, takes about a microsecond.
        assert max(found.values()) - min(found.values()) <= 12, found


def test_a_repeat_has_the_same_id_and_another_rule_with_the_id_another_one() -> None:
    assert trigger_id("u1", "msg") == trigger_id("u1", "msg")
    assert trigger_id("u1", "msg") != trigger_id("u2", "msg")
    assert trigger_id("u1", None) != trigger_id("u1", None)


def test_the_representation_of_a_request_has_no_secret_and_no_body() -> None:
    shown = repr(HookRequest(signature=GOOD_SIGNATURE, bearer=TOKEN, token_in_url=TOKEN))
    for hidden in ("4111", GOOD_SIGNATURE, TOKEN):
        assert hidden not in shown


def hooked(made: Automations, id: str, hook: dict[str, Any], **fields: Any) -> Rule:
    webhook = {"url": made.receiver.url(), "secrets": [OUT_SECRET]}
    return read_rule({"id": id, "hook": hook, "action": {"webhook": webhook}, **fields}, Rule)


async def post(
    made: Automations, id: str, headers: dict[str, str], body: bytes = BODY, query: str = ""
) -> httpx.Response:
    return await made.penstock.http.post(f"/v1/hooks/{id}{query}", content=body, headers=headers)


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("penstock_hook_requests_total", {"outcome": outcome}) or 0.0


JSON = {"content-type": "application/json"}


def bearer(token: str = TOKEN, **more: str) -> dict[str, str]:
    return {**JSON, "authorization": f"Bearer {token}", **more}


async def test_a_signed_request_fires_its_rule_once_however_often_it_is_repeated(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, 2) as made:
        made.receiver.plans["/hook"] = [answers(500)]
        await made.apply(hooked(made, "orders", {"secrets": [NEW, OLD]}))
        headers = signed(OLD, id="msg_7.a")
        first = await post(made, "orders", headers)
        assert first.status_code == 202, first.text
        delivery = first.json()["delivery_id"]
        assert first.json()["result"] == "accepted"
        again = await asyncio.gather(*(post(made, "orders", headers) for _ in range(5)))
        [_, second] = await made.receiver.count(2)
        again.append(await post(made, "orders", headers))
        assert {(each.status_code, each.json()["delivery_id"]) for each in again} == {
            (202, delivery)
        }
        assert {each.json()["result"] for each in again} == {"repeated"}
        assert second.id == delivery
        assert second.json["type"] == "hook.received"
        event = second.json["data"]
        assert event["data"] == orjson.loads(BODY)
        assert (event["event"], event["id"]) == (
            {"category": "hook", "action": "received"},
            "msg_7.a",
        )

        async def delivered() -> bool:
            entry = await made.bus.bucket("deliveries").get(delivery)
            return entry is not None and b'"delivered"' in entry.value

        await eventually(delivered, what="the delivery's record")
        assert (await post(made, "orders", headers)).json()["result"] == "repeated"
        assert len(made.receiver.requests) == 2, "the attempt that failed, and the one that did not"


async def test_a_repeat_after_the_servers_window_starts_nothing(fresh_nats: NatsServer) -> None:
    async with automations(fresh_nats.url) as made:
        await _short_window(made, streams.DELIVERIES)
        await made.apply(hooked(made, "orders", {"secrets": [NEW]}))
        made.receiver.plans["/hook"] = [hangs(2)]
        headers = signed(NEW)
        first = await post(made, "orders", headers)
        await asyncio.sleep(0.5)  # the window is 0.1 s
        # The first job is under way: the fence refuses a second one.
        assert (await post(made, "orders", headers)).json()["result"] == "repeated"
        await made.receiver.count(2)

        async def delivered() -> bool:
            entry = await made.bus.bucket("deliveries").get(first.json()["delivery_id"])
            return entry is not None and b'"delivered"' in entry.value

        await eventually(delivered, what="the delivery's record")
        assert (await post(made, "orders", headers)).json() == {
            "delivery_id": first.json()["delivery_id"],
            "result": "repeated",
        }
        await asyncio.sleep(0.5)
        assert len(made.receiver.requests) == 2


async def _short_window(made: Automations, stream: str) -> None:
    config = (await made.bus.api(f"STREAM.INFO.{stream}"))["config"]
    await made.bus.api(f"STREAM.UPDATE.{stream}", {**config, "duplicate_window": 100_000_000})


async def test_a_token_in_the_header_or_where_the_rule_says_so_in_the_url(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        await made.apply(hooked(made, "header", {"tokens": [TOKEN]}))
        await made.apply(hooked(made, "url", {"tokens": [TOKEN], "token_in_url": True}))
        key = {"idempotency-key": "order/7"}
        first = await post(made, "header", bearer(**key))
        assert first.status_code == 202
        assert (await post(made, "header", bearer(**key))).json()["delivery_id"] == first.json()[
            "delivery_id"
        ]
        assert (await post(made, "header", JSON, query=f"?token={TOKEN}")).status_code == 404
        assert (await post(made, "url", JSON, query=f"?token={TOKEN}")).status_code == 202
        await made.receiver.count(2)
        # Without an id, each request is a new one.
        ids = {(await post(made, "header", bearer())).json()["delivery_id"] for _ in range(3)}
        assert len(ids) == 3


async def test_a_condition_chooses_the_requests(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:
        where = 'event.type == "hook.received" && event.data.amount > 100'
        await made.apply(hooked(made, "large", {"tokens": [TOKEN]}, where=where))
        results = []
        for body in (b'{"amount": 7}', b'{"amount": 700}', b'{"sum": 1}', b"[1, 2]"):
            answer = await post(made, "large", bearer(), body)
            assert answer.status_code == 202
            results.append(answer.json()["result"])
        assert results[:3] == ["ignored", "accepted", "ignored"]
        [request] = await made.receiver.count(1)
        assert request.json["data"]["data"] == {"amount": 700}


async def test_unknown_rules_and_requests_that_are_not_allowed_get_the_same_answer(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with automations(nats_server.url) as made:
        await made.apply(hooked(made, "mine", {"secrets": [NEW]}))
        await made.apply(hooked(made, "theirs", {"secrets": [OTHERS]}))
        await made.apply(hooked(made, "paused", {"secrets": [NEW]}))
        await made.store.pause("paused", "a test", "a test")
        url = made.receiver.url()
        plain = {"id": "events", "subjects": ["llm.*"], "action": {"webhook": {"url": url}}}
        await made.store.apply(read_rule(plain, Rule), Owner(user_id="u1"))
        old = datetime.now(UTC) - timedelta(seconds=WINDOW_S + 5)
        requests = {
            "an unknown rule": ("nobody", signed(NEW)),
            "a rule that waits for events": ("events", signed(NEW)),
            "no id of a rule": ("..%2F$KV", signed(NEW)),
            "another rule's secret": ("mine", signed(OTHERS)),
            "another rule's id": ("theirs", signed(NEW)),
            "no signature": ("mine", JSON),
            "a token": ("mine", bearer()),
            "replayed after the window": ("mine", signed(NEW, at=old)),
            "a paused rule and another secret": ("paused", signed(OTHERS)),
        }
        bodies = {}
        for what, (id, headers) in requests.items():
            answer = await post(made, id, headers)
            assert answer.status_code == 404, what
            shown = id.replace("%2F", "/")
            bodies[what] = answer.json()["detail"].replace(shown, "ID")
        assert len(set(bodies.values())) == 1, bodies
        answer = await post(made, "paused", signed(NEW))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "60")
        await asyncio.sleep(0.2)
        assert made.receiver.requests == []
        assert await made.bus.tail(streams.DELIVERIES, "delivery.>") is None
    for hidden in ("4111", NEW, OTHERS, TOKEN):
        assert hidden not in caplog.text


async def test_no_log_line_has_a_token_a_secret_or_a_body(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with automations(nats_server.url, retry_delays_s=(1.0,)) as made:
        made.receiver.usual["/hook"] = answers(500)
        await made.apply(hooked(made, "orders", {"tokens": [TOKEN], "token_in_url": True}))
        answer = await post(made, "orders", JSON, query=f"?token={TOKEN}")
        assert answer.status_code == 202
        await post(made, "orders", JSON, query=f"?token={NEXT_TOKEN}")
        await post(made, "orders", bearer(), b'{"card": "4111-secret"')
        await made.receiver.count(2)
        await asyncio.sleep(0.5)
        assert answer.json()["delivery_id"] in caplog.text
    for hidden in ("4111", TOKEN, NEXT_TOKEN):
        assert hidden not in caplog.text.replace(f"?token={TOKEN}", "").replace(
            f"?token={NEXT_TOKEN}", ""
        ), "the test's own client logs its URL"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", bearer(), 422),
        (b"7", bearer(), 422),
        (b'"text"', bearer(), 422),
        (b"", bearer(), 422),
        (b"[" * 200 + b"]" * 200, bearer(), 422),
        (b"[" + b"[]," * 110_000 + b"[]]", bearer(), 413),
        (b'{"a": "' + b"x" * 10_000_000 + b'"}', bearer(), 413),
        (BODY, {"authorization": f"Bearer {TOKEN}"}, 415),
        (BODY, {**bearer(), "content-type": "text/plain"}, 415),
        (BODY, bearer(**{"penstock-depth": "3"}), 422),
        (BODY, bearer(**{"penstock-depth": "2"}), 202),
        (BODY, bearer(**{"penstock-depth": "x" * 9}), 422),
    ],
)
async def test_a_wrong_body_is_refused_and_stores_nothing(
    nats_server: NatsServer, body: bytes, headers: dict[str, str], status: int
) -> None:
    async with automations(nats_server.url) as made:
        await made.apply(hooked(made, "orders", {"tokens": [TOKEN]}))
        answer = await post(made, "orders", headers, body)
        assert answer.status_code == status, answer.text
        assert b"4111" not in answer.content
        if status == 202:
            await made.receiver.count(1)
        else:
            assert await made.bus.tail(streams.DELIVERIES, "delivery.>") is None


async def test_more_requests_than_the_rule_takes_are_refused_for_a_moment(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        await made.apply(hooked(made, "slow", {"tokens": [TOKEN], "rate_per_s": 1}))
        answers = [await post(made, "slow", bearer()) for _ in range(15)]
        refused = [each for each in answers if each.status_code == 429]
        assert refused
        assert refused[0].headers["retry-after"] == "1"
        # Refused requests do not count against the rate of accepted requests.
        await asyncio.sleep(1)
        for _ in range(20):
            assert (await post(made, "slow", bearer(NEXT_TOKEN))).status_code == 404
        assert (await post(made, "slow", bearer())).status_code == 202


async def test_a_removed_secret_is_refused_at_once_by_each_process(nats_server: NatsServer) -> None:
    async with automations(nats_server.url, 2) as made:
        await made.apply(hooked(made, "orders", {"secrets": [NEW, OLD]}))
        for number in range(5):
            given = [NEW, OLD] if number % 2 else [NEW]
            # Don't wait until the change is known: the process may not have read it yet.
            await made.store.apply(hooked(made, "orders", {"secrets": given}), Owner(user_id="u1"))
            answer = await post(made, "orders", signed(OLD, id=f"m{number}"))
            assert answer.status_code == (202 if number % 2 else 404)


async def test_the_clock_of_nats_decides_about_the_window(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:
        await made.apply(hooked(made, "orders", {"secrets": [NEW]}))
        headers = signed(NEW)
        [*_, service] = made.penstock.services
        server_steps(service.bus.clock, -(WINDOW_S + 10))
        before = counted("timestamp")
        assert (await post(made, "orders", headers)).status_code == 404
        assert counted("timestamp") == before + 1


async def test_a_body_that_grows_when_it_is_written_again_is_refused(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, hook_max_bytes=400 * 1024) as made:
        await made.apply(hooked(made, "orders", {"tokens": [TOKEN]}))
        large = b'{"a": "' + b"x" * 390_000 + b'"}'
        assert (await post(made, "orders", bearer(), large)).status_code == 202
        await made.receiver.count(1)
        growing = b"[" + b"1e15," * 70_000 + b"1]"
        assert (await post(made, "orders", bearer(), growing)).status_code == 413


async def test_a_large_body_that_is_never_accepted_is_a_dead_letter(
    nats_server: NatsServer,
) -> None:
    async with automations(
        nats_server.url, hook_max_bytes=400 * 1024, retry_delays_s=(1.0,)
    ) as made:
        made.receiver.usual["/hook"] = answers(500, "y" * 5000)
        await made.apply(hooked(made, "orders", {"tokens": [TOKEN]}))
        large = orjson.dumps({"a": "x" * 390_000})
        delivery = (await post(made, "orders", bearer(), large)).json()["delivery_id"]

        async def buried() -> deadletters.Letter | None:
            async for each in deadletters.letters(made.bus, "automations", "hook"):
                if (each.letter.model_extra or {})["delivery"]["id"] == delivery:
                    return each
            return None

        letter = await eventually(buried, what="the dead letter")
        assert letter is not None
        assert (letter.letter.model_extra or {})["delivery"]["id"] == delivery


_TEXTS = st.none() | st.text(max_size=60) | st.sampled_from([TOKEN, GOOD_SIGNATURE, "v1,", "msg_1"])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([SIGNED, WITH_TOKEN, IN_URL]),
    st.binary(max_size=40),
    st.tuples(_TEXTS, _TEXTS, _TEXTS, _TEXTS),
)
def test_no_request_makes_the_check_fail(
    hook: Hook, body: bytes, headers: tuple[str | None, str | None, str | None, str | None]
) -> None:
    """Whatever a header contains, the request is accepted by its token or refused."""
    id, timestamp, signature, token = headers
    texts = {"webhook_id": id, "timestamp": timestamp, "signature": signature}
    given = HookRequest(**texts, bearer=token, token_in_url=token)
    found = refusal(hook, given, AT, body)
    assert found is not None or token == TOKEN


async def test_requests_at_the_same_time_through_many_processes_fire_once_each(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, 3) as made:
        await made.apply(hooked(made, "many", {"secrets": [NEW], "rate_per_s": 1000}))
        requests = [signed(NEW, id=f"m{number}") for number in range(20)] * 4
        answers = await asyncio.gather(*(post(made, "many", each) for each in requests))
        assert {each.status_code for each in answers} == {202}
        await made.receiver.count(20)
        await asyncio.sleep(0.5)
        assert set(Counter(each.id for each in made.receiver.requests).values()) == {1}


async def test_a_hook_whose_condition_is_slow_is_paused(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:
        where = "event.data.all(a, event.data.all(b, a == b))"
        await made.apply(hooked(made, "slow", {"tokens": [TOKEN]}, where=where))
        body = orjson.dumps([0] * 400)
        for _ in range(MAX_SLOW):
            assert (await post(made, "slow", bearer(), body)).status_code == 202
        assert (await post(made, "slow", bearer(), body)).status_code == 503
        stored = await made.store.get("slow")
        assert stored is not None
        assert stored.record.paused is not None
        assert stored.record.paused.by == "penstock"


# the signatures of GitHub and Stripe

GITHUB_SECRET, STRIPE_SECRET = (
    "It's-a-Secret-to-Everybody",
    "whsec_5WbX5kEWLlfzsGNjH64I8lOOqUB6e8FH",
)
BY_GITHUB = Hook(signature="github", secrets=[GITHUB_SECRET, "another-secret-of-github"])
BY_STRIPE = Hook(signature="stripe", secrets=[STRIPE_SECRET])


def of_github(body: bytes = BODY, secret: str = GITHUB_SECRET, delivery: str = "d-1") -> Any:
    """The headers of GitHub (docs.github.com/webhooks, "Validating webhook deliveries")."""
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        **JSON,
        "x-github-delivery": delivery,
        "x-github-event": "push",
        "x-hub-signature-256": f"sha256={digest}",
    }


def of_stripe(body: bytes = BODY, secret: str = STRIPE_SECRET, at: float = AT) -> Any:
    """The headers of Stripe (docs.stripe.com/webhooks, "Verify webhook signatures manually")."""
    signed = f"{int(at)}.".encode() + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return {**JSON, "stripe-signature": f"t={int(at)},v1={digest},v0=6ffbb59b"}


def github(**changes: Any) -> HookRequest:
    headers = of_github()
    fields = {"github_delivery": "d-1", "github_signature": headers["x-hub-signature-256"]}
    return HookRequest(**{**fields, **changes})


def stripe(signature: str | None = None, **made: Any) -> HookRequest:
    return HookRequest(stripe_signature=signature or of_stripe(**made)["stripe-signature"])


HEX = of_stripe()["stripe-signature"].split("v1=")[1].split(",")[0]


@pytest.mark.parametrize(
    ("hook", "given", "at", "expected"),
    [
        (BY_GITHUB, github(), AT, None),
        (BY_GITHUB, github(), AT + 10**6, None),  # GitHub signs no time
        (BY_GITHUB, github(github_signature=None), AT, "signature"),
        (BY_GITHUB, github(github_signature="sha256="), AT, "signature"),
        (BY_GITHUB, github(github_signature="sha1=abc"), AT, "signature"),
        (
            BY_GITHUB,
            github(github_signature=of_github(secret="x" * 20)["x-hub-signature-256"]),
            AT,
            "signature",
        ),
        (BY_GITHUB, github(github_delivery="a b"), AT, "id"),
        (BY_GITHUB, request(), AT, "signature"),
        (BY_GITHUB, HookRequest(bearer=GITHUB_SECRET), AT, "signature"),
        (BY_STRIPE, stripe(), AT, None),
        (BY_STRIPE, stripe(), AT + WINDOW_S, None),
        (BY_STRIPE, stripe(), AT + WINDOW_S + 1, "timestamp"),
        (BY_STRIPE, stripe(secret="whsec_another"), AT, "signature"),
        (BY_STRIPE, stripe(f"t={int(AT)},v1=00,v1={HEX}"), AT, None),  # two secrets at Stripe
        (BY_STRIPE, stripe(f"t={int(AT) + 1},v1={HEX}"), AT, "signature"),
        (BY_STRIPE, stripe(f"t={int(AT)},t={int(AT)},v1={HEX}"), AT, "signature"),
        (BY_STRIPE, stripe(f"v1={HEX}"), AT, "signature"),
        (BY_STRIPE, stripe(f"t={int(AT)},v0={HEX}"), AT, "signature"),
        (BY_STRIPE, stripe("t=,v1="), AT, "signature"),
        (BY_STRIPE, github(), AT, "signature"),
        (SIGNED, github(), AT, "signature"),
        (SIGNED, stripe(), AT, "signature"),
    ],
)
def test_a_hook_accepts_only_the_signature_that_it_names(
    hook: Hook, given: HookRequest, at: float, expected: Refusal | None
) -> None:
    assert refusal(hook, given, at) == expected
    if expected is None:
        assert refusal(hook, given, at, BODY + b" ") == "signature"


@pytest.mark.parametrize(
    ("hook", "field", "reason"),
    [
        ({"signature": "github", "secrets": ["short"]}, "hook.secrets.0", "16 to 512"),
        ({"signature": "stripe", "tokens": [TOKEN]}, "hook", "has no signature"),
        ({"signature": "gitlab"}, "hook.signature", "must be 'standard', 'github' or 'stripe'"),
        ({"secrets": [GITHUB_SECRET]}, "hook.secrets.0", "begins with whsec_"),
    ],
)
def test_a_hook_with_a_signature_that_cannot_be_is_refused(
    hook: dict[str, Any], field: str, reason: str
) -> None:
    rule = {"id": "h", "hook": hook, "action": {"webhook": {"url": "https://x.example/"}}}
    with pytest.raises(InvalidRule) as refused:
        read_rule(rule, Rule)
    [problem] = refused.value.problems
    assert problem["field"] == field
    assert reason in problem["reason"]
    assert GITHUB_SECRET not in str(refused.value)


def test_a_hook_that_changes_its_signature_gets_a_new_secret() -> None:
    fields = {"id": "h", "action": {"webhook": {"url": "https://x.example/"}}}
    before = read_rule(
        {**fields, "hook": {"signature": "github", "secrets": [GITHUB_SECRET]}}, Rule
    )
    after = with_secrets(read_rule({**fields, "hook": {}}, Rule), before)
    assert after.hook is not None
    assert GITHUB_SECRET not in after.hook.secrets
    assert Rule.model_validate(after.model_dump()) == after


async def test_requests_of_github_and_stripe_fire_their_rules_once_with_name_and_id(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        by_github = {"signature": "github", "secrets": [GITHUB_SECRET]}
        where = 'event.name == "push" && event.data.order == 7'
        await made.apply(hooked(made, "pushes", by_github, where=where))
        await made.apply(hooked(made, "paid", {"signature": "stripe", "secrets": [STRIPE_SECRET]}))
        pushed = [await post(made, "pushes", of_github()) for _ in range(2)]
        assert [each.json()["result"] for each in pushed] == ["accepted", "repeated"]
        ping = {**of_github(delivery="d-2"), "x-github-event": "ping"}
        assert (await post(made, "pushes", ping)).json()["result"] == "ignored"
        body = b'{"id": "evt_1", "type": "charge.succeeded"}'
        now = datetime.now(UTC).timestamp()
        paid = [await post(made, "paid", of_stripe(body, at=at), body) for at in (now, now - 9)]
        assert [each.json()["result"] for each in paid] == ["accepted", "repeated"]
        got = {
            each.id.partition(".")[0]: each.json["data"] for each in await made.receiver.count(2)
        }
        assert (got["pushes"]["name"], got["pushes"]["id"]) == ("push", "d-1")
        assert (got["paid"]["id"], "name" in got["paid"]) == ("evt_1", False)
        assert (await post(made, "paid", of_github())).status_code == 404
        assert (await post(made, "pushes", of_github(secret="x" * 20))).status_code == 404
