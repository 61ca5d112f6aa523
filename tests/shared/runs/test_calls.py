"""A workflow's call is stored once, however often it is published."""

from __future__ import annotations

import orjson
import pytest
from pydantic import ValidationError

from penstock.bus import subjects
from penstock.bus.streams import DELIVERIES
from penstock.runs.calls import MAX_BODY_BYTES, CallJob, called_subject, publish_call
from support.drive.bus import connected
from support.real.nats import NatsServer

RUN = "019aab00-0000-7000-8000-000000000001"
CALL = CallJob(
    run_id=RUN, step_id="step_notify", call_id="notify.0.1", url="https://example.org/hook"
)


async def test_a_call_that_is_published_again_is_stored_once(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as bus:
        await publish_call(bus, CALL)
        await publish_call(bus, CALL)
        await publish_call(bus, CALL.model_copy(update={"call_id": "notify.1.1"}))
        asked = {"subjects_filter": "delivery._call.*"}
        info = await bus.api(f"STREAM.INFO.{DELIVERIES}", asked)
        assert list(info["state"]["subjects"].values()) == [1, 1]
        stored = await bus.tail(DELIVERIES, f"delivery._call.{CALL.token}")
        assert stored is not None
        assert CallJob.model_validate(orjson.loads(stored.payload)["call"]) == CALL


def test_subjects_of_calls_name_the_run() -> None:
    assert subjects.run_id_of(f"delivery._call.{CALL.token}") == RUN
    assert called_subject(RUN) == f"command.workflows.called.{RUN}"


def test_a_call_with_an_id_or_a_body_that_cannot_be_sent_is_refused() -> None:
    for wrong in ({"call_id": "a\r\nb"}, {"call_id": ""}, {"body": "x" * MAX_BODY_BYTES}):
        with pytest.raises(ValidationError):
            CallJob.model_validate({**CALL.model_dump(), **wrong})
