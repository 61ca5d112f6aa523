"""A step that calls a webhook: the services workflows and automations together."""

from __future__ import annotations

from penstock_automations.service import AutomationsService
from support.drive.workflows import (
    SERVICES,
    counting,
    define,
    definition,
    start_workflow,
    workflows,
)
from support.fakes.receiver import answers, receiver
from support.real.nats import NatsServer

FLOW = """
name: calls
steps:
  good:
    call: {{url: '{good}', body: '{{"n": input.n}}'}}
    output: result.data.said
  bad:
    call: {{url: '{bad}'}}
    retry: {{attempts: 2, backoff: 1s}}
    on_failure: continue
  large:
    call: {{url: '{good}', body: 'input.text'}}
    on_failure: continue
output: '[good.output, bad.error.code, large.error.code, large.error.message]'
"""


async def test_a_step_gets_the_answer_of_its_call_and_the_failure_of_another(
    fresh_nats: NatsServer,
) -> None:
    async with (
        counting() as server,
        receiver() as hook,
        workflows(
            fresh_nats.url,
            server,
            (*SERVICES, AutomationsService),
            webhook_allow_hosts="127.0.0.1",
        ) as penstock,
    ):
        hook.usual["/good"] = answers(200, '{"said": "thanks"}')
        hook.usual["/bad"] = answers(500)
        text = FLOW.format(good=hook.url("/good"), bad=hook.url("/bad"))
        await define(penstock.bus, definition(text))
        run_id = await start_workflow(penstock.bus, "calls", {"n": 4, "text": "x" * 300_000})
        events = await penstock.ended(run_id)
        assert events[-1].type == "lifecycle.completed", events[-1].data
        *codes, message = events[-1].data["value"]
        assert codes == ["thanks", "http_500", "not_accepted"]
        assert "at most 262144 bytes" in message
        bodies = [each.json for each in hook.requests if each.path == "/good"]
        assert bodies == [{"n": 4}]
        # The step's retry repeats the call, so each call has one attempt.
        assert len([each for each in hook.requests if each.path == "/bad"]) == 2
