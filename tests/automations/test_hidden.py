"""Secrets of rules are never shown: not in answers of receivers, and not in the rules."""

from __future__ import annotations

from typing import Any

import orjson

from penstock_automations.actions.executor import Occurrence
from penstock_automations.actions.webhook.exchange import Answer
from penstock_automations.actions.webhook.preparing import request_of
from penstock_automations.jobs.job import Job, TriggerSource
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.model import Rule
from support.fakes.receiver import SECRET

BODY: dict[str, Any] = {"timestamp": "2026-11-22T10:00:00.000Z", "data": {}}


def test_a_receiver_that_answers_with_the_headers_it_got_shows_no_secret() -> None:
    webhook = {"url": "https://x.example/", "auth": {"bearer": "top-secret"}, "secrets": [SECRET]}
    rule = {"id": "r", "subjects": ["llm.tool_call"], "action": {"webhook": webhook}}
    job = Job("r", 1, "u", "llm.tool_call", TriggerSource("hook", "1", BODY))
    occurrence = Occurrence(orjson.dumps(BODY))
    request = request_of(
        read_rule(rule, Rule), job, occurrence, unix_s=1_700_000_000.0, max_bytes=10_000
    )
    echoed = orjson.dumps(request.headers) + b"x" * 2000
    shown = Answer(200, {}, echoed).shown(request.secrets)
    assert "top-secret" not in shown
    assert request.headers["webhook-signature"] not in shown
    assert len(shown.encode()) == 1024
