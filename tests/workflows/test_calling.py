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
  asked:
    call:
      url: '{asked}?a=1'
      method: GET
      query: {{n: input.n, tag: '["x", "y z"]', where: '{{"k": true}}', none: 'null'}}
      headers: {{X-Team: '"core"', X-Note: "n is ${{input.n}}\nX-Injected: yes"}}
      expect: [404, 410]
    output: '[result.status, result.data, result.headers["x-page"]]'
  moved:
    call: {{url: '{good}', method: DELETE, expect: [204]}}
    retry: {{attempts: 1}}
    on_failure: continue
  large:
    call: {{url: '{good}', body: 'input.text'}}
    on_failure: continue
output: >-
  [good.output, asked.output, moved.error.code, bad.error.code, large.error.code,
  large.error.message]
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
        asked = "/asked?a=1&n=4&tag=x&tag=y+z&where=%7B%22k%22%3Atrue%7D"
        hook.usual[asked] = answers(410, "[1]", x_page="2")
        text = FLOW.format(**{name: hook.url(f"/{name}") for name in ("good", "bad", "asked")})
        await define(penstock.bus, definition(text))
        run_id = await start_workflow(penstock.bus, "calls", {"n": 4, "text": "x" * 300_000})
        events = await penstock.ended(run_id)
        assert events[-1].type == "lifecycle.completed", events[-1].data
        *found, message = events[-1].data["value"]
        assert found == ["thanks", [410, [1], "2"], "http_200", "http_500", "not_accepted"]
        assert "at most 262144 bytes" in message
        sent = {each.method: each for each in hook.requests if each.path != "/bad"}
        assert sent.keys() == {"POST", "GET", "DELETE"}
        assert sent["POST"].json == {"n": 4}
        headers = sent["GET"].headers
        assert (sent["GET"].path, sent["GET"].body, headers["x-team"]) == (asked, b"", "core")
        assert (headers["x-note"], headers.get("x-injected")) == ("n is 4 X-Injected: yes", None)
        # The step's retry repeats the call, so each call has one attempt.
        assert len([each for each in hook.requests if each.path == "/bad"]) == 2
