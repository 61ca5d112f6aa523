"""A workflow's call is delivered as a webhook is, and its workflow gets one outcome."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from penstock.bus import Bus, Message, streams, subjects
from penstock.runs.calls import Called, CallJob, called_subject, publish_call
from penstock.settings import ConfigurationError
from penstock_automations.rules.calls import read_call_secrets
from support.drive.automations import Automations, automations
from support.drive.dead_letters import all_letters
from support.drive.waiting import eventually
from support.fakes.receiver import SECRET, answers, echoes
from support.real.nats import NatsServer

TOKEN = "token-of-the-operator"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with a secret for the receiver, and one for another host."""
    monkeypatch.setenv("CALL_TOKEN", TOKEN)
    listed = [
        {
            "name": "ours",
            "hosts": ["127.0.0.1"],
            "secrets": [SECRET],
            "auth": {"bearer": "${CALL_TOKEN}"},
        },
        {
            "name": "keyed",
            "hosts": ["127.0.0.1"],
            "secrets": [SECRET],
            "auth": {"header": {"name": "X-Key", "value": "${CALL_TOKEN}"}},
        },
        {"name": "theirs", "hosts": ["example.org"], "secrets": [SECRET]},
    ]
    file = tmp_path / "secrets.yaml"
    file.write_text(yaml.safe_dump({"secrets": listed}))
    return file


async def called(bus: Bus, job: CallJob) -> Called:
    """Return the outcome that the workflow gets."""

    async def probe() -> Called | None:
        stored = await bus.tail(streams.COMMANDS, called_subject(job.run_id))
        found = Called.model_validate_json(stored.payload) if stored is not None else None
        return found if found is not None and found.call_id == job.call_id else None

    found = await eventually(probe, what="the outcome of the call")
    assert found is not None
    return found


async def call(made: Automations, path: str = "/hook", **fields: Any) -> CallJob:
    """Publish a call of a run that has a record."""
    run = await made.run()
    job = CallJob(
        **{
            "run_id": run.run_id,
            "step_id": "step_notify",
            "call_id": "notify.0.1",
            "workflow": "review",
            "url": made.receiver.url(path),
            "secret": "ours",
            **fields,
        }
    )
    await publish_call(made.bus, job)
    return job


async def test_a_call_is_signed_and_its_workflow_gets_the_answer(
    nats_server: NatsServer, secrets: Path
) -> None:
    async with automations(nats_server.url, call_secrets=secrets) as made:
        made.receiver.plans["/hook"] = [answers(200, '{"ticket": 7}')]
        headers = {"X-Team": "core"}
        job = await call(made, body={"score": 80}, headers=headers, traceparent="00-a-b-01")
        outcome = await called(made.bus, job)
        assert outcome.model_dump(exclude_none=True) == {
            "run_id": job.run_id,
            "step_id": "step_notify",
            "call_id": "notify.0.1",
            "outcome": "delivered",
            "status": 200,
            "answer": '{"ticket": 7}',
            "headers": {"content-length": "13", "connection": "close"},
            "attempts": 1,
        }
        [request] = made.receiver.requests  # the receiver has checked the signature
        assert request.json == {"score": 80}
        assert request.id == f"call.{job.run_id}.notify.0.1"
        assert request.headers["webhook-id"] == f"msg_call_{job.token}"
        sent = request.headers
        assert (sent["x-team"], sent["authorization"]) == ("core", f"Bearer {TOKEN}")
        assert (sent["traceparent"], sent["penstock-run-id"]) == ("00-a-b-01", job.run_id)
        # The same call again makes no second request. Neither does a call after the server has
        # forgotten the message's id, since the call has an outcome.
        await publish_call(made.bus, job)
        await _publish_anew(made.bus, job)

        async def none_waits() -> bool:
            return await made.bus.tail(streams.DELIVERIES, "delivery._call.*") is None

        await eventually(none_waits, what="that the repeated call was handled")
        assert len(made.receiver.requests) == 1
        assert await all_letters(made.bus, run_id=job.run_id) == []


async def _publish_anew(bus: Bus, job: CallJob) -> None:
    """Publish a call without the id by which the server discards a repeated message."""
    payload = orjson.dumps({"source": "call", "call": job.model_dump(exclude_none=True)})
    await bus.publisher.publish(Message(subjects.delivery_of(f"_call.{job.token}"), payload, {}))


async def test_a_call_that_fails_is_repeated_with_its_own_delays(nats_server: NatsServer) -> None:
    async with automations(nats_server.url, retry_delays_s=(3600,)) as made:
        made.receiver.usual["/hook"] = echoes
        made.receiver.plans["/hook"] = [answers(500), answers(200, "no")]
        job = await call(made, secret=None, expect="ok", body="ok", retry_delays_s=[0.5, 0.5])
        outcome = await called(made.bus, job)
        assert (outcome.outcome, outcome.attempts) == ("delivered", 3)
        assert len({request.id for request in made.receiver.requests}) == 1
        unsigned = made.receiver.requests[0].headers
        assert "webhook-signature" not in unsigned
        made.receiver.bad_signatures.clear()


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "no such secret": ({"secret": "nobodys"}, "unknown_secret"),
    "a secret of another host": ({"secret": "theirs"}, "unknown_secret"),
    "a wrong URL": ({"url": "ftp://127.0.0.1/"}, "not_accepted"),
    "a header of our own": ({"headers": {"Webhook-Id": "x"}}, "not_accepted"),
    "a secret in a header": ({"headers": {"Cookie": "x"}}, "not_accepted"),
    "a large header": ({"headers": {"X-Text": "x" * 5000}}, "not_accepted"),
    "a refused address": ({"url": "https://10.0.0.1/", "secret": None}, "refused_address"),
    "too late": ({"give_up_at": 1.0}, "gave_up"),
}


async def test_a_call_that_cannot_be_made_fails_at_once_without_a_request(
    nats_server: NatsServer, secrets: Path
) -> None:
    async with automations(nats_server.url, call_secrets=secrets) as made:
        for fields, code in FAILURES.values():
            job = await call(made, retry_delays_s=[], **fields)
            outcome = await called(made.bus, job)
            assert outcome.error is not None
            assert (outcome.outcome, outcome.error.code) == ("failed", code)
            assert TOKEN not in outcome.error.message
            assert SECRET not in outcome.error.message
        assert made.receiver.requests == []


async def test_a_call_ends_with_its_step_with_its_run_and_with_a_410(
    nats_server: NatsServer, secrets: Path
) -> None:
    async with automations(nats_server.url, call_secrets=secrets) as made:
        made.receiver.usual["/fails"] = answers(500)
        made.receiver.usual["/gone"] = answers(410, "bye")
        limited = await call(made, "/fails", give_up_at=time.time() + 3, retry_delays_s=[1] * 9)
        gone = await call(made, "/gone")
        over = await made.run(status="cancelled")
        ended = await call(made, run_id=over.run_id)
        outcomes = [await called(made.bus, job) for job in (limited, gone, ended)]
        found = [(each.outcome, each.status, each.error and each.error.code) for each in outcomes]
        # On a slow machine, the last attempt comes too late.
        assert found[0] in (("failed", 500, "http_500"), ("failed", None, "gave_up"))
        assert found[1:] == [
            ("failed", 410, "http_410"),
            ("failed", None, "run_ended"),
        ]
        assert outcomes[1].answer == "bye"
        assert 1 <= len(made.receiver.got("/fails")) <= 3
        assert made.receiver.got("/hook") == []


async def test_an_answer_that_repeats_the_credentials_is_shown_without_them(
    nats_server: NatsServer, secrets: Path
) -> None:
    async with automations(nats_server.url, call_secrets=secrets) as made:
        made.receiver.plans["/hook"] = [answers(200, f"you sent Bearer {TOKEN}")]
        outcome = await called(made.bus, await call(made))
        assert outcome.answer == "you sent (hidden)"
        # Nor does it help to name the header of the secret.
        made.receiver.usual["/echo"] = echoes
        job = await call(made, "/echo", secret="keyed", headers={"X-Key": "guess"})
        outcome = await called(made.bus, job)
        assert TOKEN in str(made.receiver.got("/echo")[0].headers)
        assert TOKEN not in outcome.model_dump_json()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("secrets: [{name: a, hosts: [h]}]", "give `secrets`, `auth` or both"),
        ("secrets: [{name: a, secrets: [whsec_hush], hosts: [h]}]", "24 to 64 bytes"),
        ("secrets: [{name: a, secrets: [], hosts: []}]", "hosts"),
        ("secrets: [{name: a, hosts: [h], auth: {bearer: '${NOT_SET}'}}]", "NOT_SET is not set"),
        ("rules: []", "one key, `secrets`"),
    ],
)
def test_a_wrong_file_of_secrets_names_the_field_and_no_secret(
    tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "secrets.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=reason) as found:
        read_call_secrets(file)
    assert "hush" not in str(found.value)
