"""An event that a rule matches reaches its receiver signed, and its outcome is said once."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import orjson
import pytest

from penstock import telemetry
from penstock.bus import Message, Stored, WorkQueue, streams, subjects
from penstock.bus.admin import replay
from penstock.bus.read.work_queue import again_after
from penstock.bus.state import deadletters
from penstock_automations.actions.webhook.breaker import Breaker
from penstock_automations.actions.webhook.exchange import Sender
from support.drive.automations import automations, rule
from support.drive.pipeline import Event
from support.drive.waiting import eventually
from support.fakes.receiver import (
    OK,
    SECRET,
    Behaviour,
    answers,
    garbage,
    hangs,
    late,
    receiver,
    resets,
    trickles,
)
from support.real.nats import NatsServer


async def test_an_event_is_delivered_and_said_on_the_runs_timeline(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:
        await made.apply(rule("hook", made.receiver.url(), "lifecycle.completed", name="Hook"))
        run = await made.run()
        await run.open()
        await run.complete()
        [request] = await made.receiver.count(1)
        events = await made.penstock.events_until(run.run_id, "automation.completed")
        *_, completed, triggered, outcome = events
        assert completed.type == "lifecycle.completed"
        assert request.id == f"hook.{run.run_id}.{completed.sequence}"
        assert request.json == {
            "type": "lifecycle.completed",
            "timestamp": completed.body["timestamp"],
            "data": completed.body,
        }
        assert triggered.type == "automation.triggered"
        assert triggered.data == {
            "automation": "hook",
            "trigger": "lifecycle.completed",
            "delivery_id": request.id,
            "workflow": "Hook",
            "depth": 0,
        }
        assert (outcome.data["status_code"], outcome.data["attempts"]) == (200, 1)
        record = await made.delivery("hook", run.run_id, completed.sequence)
        assert record.status == "delivered"
        assert len(made.receiver.requests) == 1


async def test_a_delivery_whose_reports_are_lost_is_not_sent_twice_by_its_process(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_lost(_: WorkQueue) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(WorkQueue, "_report_work", is_lost)
    async with automations(nats_server.url, deliver_ack_wait_s=1) as made:
        made.receiver.usual["/hook"] = late(4)
        await made.apply(rule("hook", made.receiver.url(), "lifecycle.completed"))
        run = await made.run()
        await run.open()
        await run.complete()
        events = await made.penstock.events_until(run.run_id, "automation.completed")
        assert events[-1].data["attempts"] == 1
        assert len(made.receiver.requests) == 1


@pytest.mark.parametrize(("unsurvived", "outcome"), [(0, "completed"), (5, "failed")])
async def test_a_job_is_given_up_for_processes_that_did_not_survive_it_and_not_for_deliveries(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, unsurvived: int, outcome: str
) -> None:
    answer = WorkQueue._answer_to

    async def answer_at_last(self: WorkQueue, stored: Stored) -> bytes:
        if stored.subject.startswith("delivery."):
            if stored.delivered < 25:
                return again_after(0)
            if unsurvived:
                key = f"attempts.automations.automations.{stored.sequence}.{stored.subject}"
                bucket = made.penstock.bus.bucket("claims")
                await bucket.put(key, str(unsurvived).encode())
        return await answer(self, stored)

    monkeypatch.setattr(WorkQueue, "_answer_to", answer_at_last)
    async with automations(nats_server.url) as made:
        await made.apply(rule("hook", made.receiver.url(), "lifecycle.completed"))
        run = await made.run()
        await run.open()
        await run.complete()
        [told] = await made.outcomes(run.run_id, 1)
    assert told.type == f"automation.{outcome}"
    assert len(made.receiver.requests) == (1 if outcome == "completed" else 0)


@pytest.mark.parametrize("ordered", ["none", "run"])
async def test_a_condition_and_the_owner_choose_the_events(
    nats_server: NatsServer, ordered: str
) -> None:
    async with automations(nats_server.url) as made:
        where = 'event.data.tool == "delete_file" && event.data.args.path != "/tmp"'
        mine = rule("mine", made.receiver.url(), "llm.tool_call", where=where, order=ordered)
        await made.apply(mine, "u1")
        theirs = rule("theirs", made.receiver.url("/theirs"), "llm.*", order=ordered)
        await made.apply(theirs, "u2")
        run = await made.run("u1")
        await run.open()
        await run.tool(1, "get_weather", path="/x")
        await run.tool(2, "delete_file", path="/x")
        await run.tool(3, "delete_file", path="/tmp")
        await run.complete()
        [outcome] = await made.outcomes(run.run_id, 1)
        [request] = made.receiver.requests
        assert request.path == "/hook"
        assert request.json["data"]["data"]["args"] == {"path": "/x"}
        assert outcome.data["automation"] == "mine"


FAILURES: dict[str, tuple[Behaviour, str]] = {
    "an error": (answers(500, "out of order"), "http_500"),
    "not there yet": (answers(404), "http_404"),
    "a redirect": (answers(302, location="http://127.0.0.1:9/else"), "http_302"),
    "no answer": (hangs(), "timeout"),
    "a body that never ends": (trickles(), "timeout"),
    "garbage": (garbage, "protocol"),
    "a reset": (resets, "connection"),
    "too many": (answers(429, Retry_After="1"), "http_429"),
    "a node that threw": (answers(200, ""), "unexpected_answer"),
}


async def test_an_attempt_that_fails_is_repeated_until_the_receiver_accepts(
    nats_server: NatsServer,
) -> None:
    """Nine receivers fail in nine ways at once, and then answer 200."""
    async with automations(nats_server.url) as made:
        for number, (behave, _) in enumerate(FAILURES.values()):
            path = f"/{number}"
            made.receiver.plans[path] = [behave]
            webhook = {"timeout_s": 1, "expect": "ok", "concurrency": 32}
            await made.apply(
                rule(f"r{number}", made.receiver.url(path), "lifecycle.started", webhook=webhook)
            )
        run = await made.run()
        await run.open()
        outcomes = await made.outcomes(run.run_id, len(FAILURES), 30)
        assert {each.type for each in outcomes} == {"automation.completed"}
        assert {each.data["attempts"] for each in outcomes} == {2}
        for number, (_, code) in enumerate(FAILURES.values()):
            first, second = made.receiver.got(f"/{number}")
            assert first.id == second.id, "the same id at every attempt"
            assert first.body == second.body
            assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
            record = await made.delivery(f"r{number}", run.run_id, 1)
            assert [each.code for each in record.attempts] == [code, ""]


async def test_a_retry_is_logged_and_leaves_no_message_in_schedules_and_no_advisory(
    fresh_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock_automations")
    async with automations(fresh_nats.url) as made:
        made.receiver.plans["/hook"] = [answers(500), answers(500)]
        await made.apply(rule("hook", made.receiver.url(), "lifecycle.completed"))
        run = await made.run()
        await run.open()
        await run.complete()
        await made.outcomes(run.run_id, 1)
        assert len(made.receiver.requests) == 3

        async def gone() -> bool:
            return await made.bus.tail(streams.SCHEDULES, ">") is None

        await eventually(gone, what="that SCHEDULES has no message")
        advisories = await made.bus.api(f"STREAM.INFO.{streams.ADVISORIES}")
        assert advisories["state"]["last_seq"] == 0
        about = f"run {run.run_id}: rule hook: attempt"
        said = [each for each in caplog.messages if each.startswith(about)]
        reason = "the receiver answered 500 Internal Server Error; the next in 1 s"
        assert said == [
            f"{about} 1 failed: {reason}",
            f"{about} 2 failed: {reason}",
            f"{about} 3 was delivered",
        ]


async def test_a_due_message_has_a_ttl_since_a_kill_may_leave_it_in_schedules(
    fresh_nats: NatsServer,
) -> None:
    async with automations(fresh_nats.url, retry_delays_s=(3600,)) as made:
        made.receiver.plans["/hook"] = [answers(500)]
        await made.apply(rule("hook", made.receiver.url(), "lifecycle.completed"))
        run = await made.run()
        await run.open()
        await run.complete()

        async def scheduled() -> Stored | None:
            return await made.bus.tail(streams.SCHEDULES, "schedule.automations.>")

        message = await eventually(scheduled, what="the retry in SCHEDULES")
        assert message.headers["Nats-Schedule-TTL"] == "2592000s"


async def test_a_receiver_that_never_accepts_ends_in_a_dead_letter_with_all_attempts(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        path = "/hook?key=hidden"
        made.receiver.usual[path] = answers(503, "x" * 5000)
        webhook = {"auth": {"bearer": "top-secret"}}
        hook = rule("hook", made.receiver.url(path), "lifecycle.started", webhook=webhook)
        await made.apply(hook)
        run = await made.run()
        await run.open()
        [outcome] = await made.outcomes(run.run_id, 1)
        assert outcome.type == "automation.failed"
        assert outcome.data["attempts"] == 4
        assert outcome.data["error"]["code"] == "http_503"
        assert outcome.data["error"]["retryable"] is True
        [found] = [each async for each in deadletters.letters(made.bus, "automations", run.run_id)]
        delivery = (found.letter.model_extra or {})["delivery"]
        assert [each["status"] for each in delivery["attempts"]] == [503] * 4
        assert delivery["attempts"][0]["answer"] == "x" * 1024
        assert delivery["request"]["url"] == made.receiver.url("/hook")
        text = found.letter.model_dump_json() + orjson.dumps(outcome.body).decode()
        for secret in ("top-secret", "hidden", SECRET):
            assert secret not in text

        made.receiver.usual[path] = OK
        assert await replay.replay_letter(made.bus, found)
        events = await made.penstock.events_until(run.run_id, "automation.completed")
        assert events[-1].data["delivery_id"] == outcome.data["delivery_id"]
        assert len({each.id for each in made.receiver.requests}) == 1


async def test_410_pauses_the_rule_until_it_is_resumed(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:
        made.receiver.plans["/hook"] = [answers(410)]
        await made.apply(rule("hook", made.receiver.url(), "lifecycle.started"))
        run = await made.run()
        await run.open()
        [outcome] = await made.outcomes(run.run_id, 1)
        assert outcome.data["error"]["code"] == "http_410"

        async def paused() -> bool:
            found = await made.store.get("hook")
            return found is not None and found.record.paused is not None

        await eventually(paused, what="the pause")
        await made.settled()
        second = await made.run()
        await second.open()
        await made.penstock.events_until(second.run_id, "lifecycle.started")
        assert await made.store.resume("hook")
        await made.settled()
        third = await made.run()
        await third.open()
        await made.outcomes(third.run_id, 1)
        assert [each.headers["penstock-run-id"] for each in made.receiver.requests] == [
            run.run_id,
            third.run_id,
        ]


async def test_retry_after_replaces_the_delay(nats_server: NatsServer) -> None:
    async with automations(nats_server.url, retry_delays_s=(300.0,)) as made:
        made.receiver.plans["/hook"] = [answers(429, Retry_After="2")]
        await made.apply(rule("hook", made.receiver.url(), "lifecycle.started"))
        run = await made.run()
        await run.open()
        await made.outcomes(run.run_id, 1)
        first, second = made.receiver.requests
        assert 1.5 < second.at - first.at < 10


async def test_the_address_of_this_machine_is_refused_unless_it_is_allowed(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, webhook_allow_hosts=(), retry_delays_s=(1.0,)) as made:
        for scheme in ("http", "https"):
            url = f"{scheme}://127.0.0.1:{made.receiver.port}/hook"
            await made.apply(rule(scheme, url, "lifecycle.started"))
        run = await made.run()
        await run.open()
        outcomes = await made.outcomes(run.run_id, 2)
        assert [each.data["error"]["code"] for each in outcomes] == ["refused_address"] * 2
        assert made.receiver.requests == []


async def test_a_rule_that_fails_is_reported_and_blocks_no_other(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:
        url = made.receiver.url()
        bad = rule("bad", url, "lifecycle.started", where="1 / (event.sequence - 1) == 1")
        await made.apply(bad)
        await made.apply(rule("missing", url, "lifecycle.started", where='event.data["nope"] == 1'))
        await made.apply(rule("good", url, "lifecycle.started"))
        run = await made.run()
        await run.open()
        outcomes = {each.data["automation"]: each for each in await made.outcomes(run.run_id, 2)}
        assert outcomes["good"].type == "automation.completed"
        assert outcomes["bad"].type == "automation.failed"
        assert outcomes["bad"].data["error"]["code"] == "condition"
        assert "divide by zero" in outcomes["bad"].data["error"]["message"]
        assert outcomes.keys() == {"good", "bad"}
        assert len(made.receiver.requests) == 1


async def test_a_delivery_ends_at_its_age_limit_also_if_the_breaker_lets_no_attempt_be_made(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Breaker.__init__, "__defaults__", (1.0,))
    async with automations(nats_server.url, delivery_max_age_s=4) as made:
        made.receiver.usual["/hook"] = answers(500, retry_after="60")
        webhook = {"concurrency": 1}
        await made.apply(rule("hook", made.receiver.url(), "llm.tool_call", webhook=webhook))
        run = await made.run()
        await run.open()
        for number in range(9):
            await run.tool(number)
        failed = await made.outcomes(run.run_id, 9, timeout_s=60)
        codes = Counter(each.data["error"]["code"] for each in failed)
        assert codes["http_500"] >= 5, "no attempt may be made after the age limit"
        assert codes["too_old"] >= 1, codes
        assert codes.total() == 9


async def test_the_owner_of_a_rule_that_keeps_failing_is_told_once_and_the_metric_names_the_rule(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, retry_delays_s=[]) as made:
        made.receiver.plans["/hook"] = [answers(404)] * 7
        await made.apply(rule("hook", made.receiver.url(), "llm.tool_call"))
        run = await made.run()
        await run.open()
        for number in range(7):
            await run.tool(number)
            await made.outcomes(run.run_id, number + 1)
        gauge = telemetry.RULE_FAILURES.labels("hook")._value
        assert gauge.get() == 7
        events = await made.penstock.events_until(run.run_id, is_warning)
        [warning] = [each for each in events if is_warning(each)]
        assert warning.data["detail"]["automation"] == "hook"
        assert "404" in warning.data["message"]
        await run.tool(7)
        await made.outcomes(run.run_id, 8)
        assert "hook" not in str(telemetry.RULE_FAILURES.collect())


def is_warning(event: Event) -> bool:
    return event.type == "system.warning" and event.data["code"] == "automation_failing"


async def test_deliveries_of_an_ordered_rule_wait_for_the_one_before(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, 2) as made:
        made.receiver.plans["/hook"] = [answers(500), OK, answers(500), late(0.3)]
        ordered = rule("ordered", made.receiver.url(), "llm.tool_call", order="run")
        await made.apply(ordered)
        run = await made.run()
        await run.open()
        for number in range(8):
            await run.tool(number, "get_weather", n=number)
        outcomes = await made.outcomes(run.run_id, 8)
        delivered = [each.json["data"]["data"]["args"]["n"] for each in made.receiver.requests]
        assert delivered == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7]
        said = [int(each.data["delivery_id"].rpartition(".")[2]) for each in outcomes]
        assert said == sorted(said)


async def test_what_a_rule_set_off_does_not_set_it_off_again(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:
        await made.apply(rule("own", made.receiver.url("/own"), "lifecycle.started"))
        started = await made.run(automations=["own"])
        await started.open()
        deep = await made.run(automations=["a", "b", "c", "d"])
        await deep.open()
        last = await made.run()
        await last.open()
        await made.outcomes(last.run_id, 1)
        of_runs = {each.headers["penstock-run-id"] for each in made.receiver.got("/own")}
        assert of_runs == {last.run_id}


async def test_two_rules_that_wait_for_each_other_end_at_the_depth(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        ping = rule("ping", made.receiver.url("/ping"), "lifecycle.started", "automation.completed")
        await made.apply(ping)
        await made.apply(rule("pong", made.receiver.url("/pong"), "automation.completed"))
        run = await made.run()
        await run.open()
        outcomes = await made.outcomes(run.run_id, 4)
        # The run's own event, and three answers to each other; an event of depth 3 has no answer.
        assert [each.data["automation"] for each in outcomes] == ["ping", "pong"] * 2
        assert [each.data["depth"] for each in outcomes] == [0, 1, 2, 3]
        other = await made.run("u1")
        await other.open()
        await made.outcomes(other.run_id, 4)
        assert len(made.receiver.requests) == 8


async def test_an_event_of_a_deleted_rule_does_not_reach_the_next_owner_of_its_id(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        made.receiver.plans["/first"] = [answers(500)]
        await made.apply(rule("hook", made.receiver.url("/first"), "lifecycle.started"), "u1")
        run = await made.run("u1")
        await run.open()
        await made.receiver.count(1, "/first")
        assert await made.store.delete("hook")
        await made.apply(rule("hook", made.receiver.url("/second"), "lifecycle.started"), "u2")
        [outcome] = await made.outcomes(run.run_id, 1)
        assert outcome.data["error"]["code"] == "rule_deleted"
        assert made.receiver.got("/second") == []


async def test_a_slow_receiver_does_not_hold_up_another_and_gets_few_requests_at_once(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url, deliveries_at_once=24) as made, receiver() as other:
        made.receiver.usual["/slow"] = late(1)
        slow = rule("slow", made.receiver.url("/slow"), "llm.tool_call", webhook={"concurrency": 1})
        await made.apply(slow)
        await made.apply(rule("fast", other.url(), "llm.tool_call"))
        run = await made.run()
        await run.open()
        for number in range(10):
            await run.tool(number)
        await other.count(10)
        assert len(made.receiver.requests) < 10
        await made.outcomes(run.run_id, 20, 60)
        times = sorted(each.at for each in made.receiver.requests)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert min(gaps) > 0.9, "one request at a time"


async def test_a_job_that_fails_again_and_again_ends_and_the_next_in_order_continues(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Sender.send

    async def send(self: Sender, url: str, *arguments: Any) -> Any:
        if arguments[0]["penstock-delivery"].endswith(".2"):
            raise RuntimeError("a fault in the code")
        return await real(self, url, *arguments)

    monkeypatch.setattr(Sender, "send", send)
    async with automations(nats_server.url) as made:
        await made.apply(rule("hook", made.receiver.url(), "llm.tool_call", order="run"))
        run = await made.run()
        await run.open()
        await run.tool(1)
        await run.tool(2)
        first, second = await made.outcomes(run.run_id, 2)
        assert first.type == "automation.failed"
        assert first.data["error"]["code"] == "internal"
        assert second.type == "automation.completed"


async def test_a_job_that_cannot_be_read_is_a_dead_letter_and_not_repeated(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        run = await made.run()
        for subject in (
            subjects.delivery("hook", run.run_id, 1),
            subjects.due("automations", f"hook.{run.run_id}-2"),
        ):
            await made.bus.publisher.publish(Message(subject, b"no job", {}))

        async def both() -> bool:
            found = deadletters.letters(made.bus, "automations", run.run_id)
            return len([each async for each in found]) == 2

        await eventually(both, what="two dead letters")

        async def neither() -> bool:
            left = [await made.bus.tail(s, ">") for s in (streams.DELIVERIES, streams.SCHEDULES)]
            return left == [None, None]

        await eventually(neither, what="that neither message is left")


async def test_a_rule_has_retries_of_its_own(nats_server: NatsServer) -> None:
    async with automations(nats_server.url) as made:  # the service would make four attempts
        for path, own in (("/once", []), ("/twice", [1])):
            made.receiver.usual[path] = answers(500)
            url, id_ = made.receiver.url(path), path[1:]
            await made.apply(rule(id_, url, "lifecycle.started", retry_delays_s=own))
        run = await made.run()
        await run.open()
        outcomes = await made.outcomes(run.run_id, 2)
        attempts = {each.data["automation"]: each.data["attempts"] for each in outcomes}
        assert attempts == {"once": 1, "twice": 2}


async def test_the_headers_of_an_answer_are_recorded_without_secrets_and_cookies(
    nats_server: NatsServer,
) -> None:
    async with automations(nats_server.url) as made:
        long = {f"x-{number}": "y" * 200 for number in range(9)}
        made.receiver.usual["/hook"] = answers(
            204, x_request_id="r1", set_cookie="session=1", x_echo="Bearer geheim", **long
        )
        webhook = {"auth": {"bearer": "geheim"}}
        await made.apply(rule("h", made.receiver.url(), "lifecycle.started", webhook=webhook))
        run = await made.run()
        await run.open()
        await made.outcomes(run.run_id, 1)
        [attempt] = (await made.delivery("h", run.run_id, 1)).attempts
        assert attempt.headers["x-request-id"] == "r1"
        assert attempt.headers["x-echo"] == "(hidden)"
        assert "set-cookie" not in attempt.headers
        assert 3 < len(attempt.headers) < 9, "only the first KiB is kept"
