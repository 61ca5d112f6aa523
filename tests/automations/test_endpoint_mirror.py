"""Breakers that are not closed are in KV for the API, and are gone when they close."""

from __future__ import annotations

import pytest

from penstock_automations.actions.webhook import mirror
from penstock_automations.actions.webhook.breaker import FAILURES
from penstock_automations.actions.webhook.endpoints import Endpoints, origin
from penstock_automations.actions.webhook.mirror import Mirror, endpoints_of
from penstock_automations.rules.records import CompiledRule, RuleRecord
from support.drive.automations import rule, user
from support.drive.bus import connected
from support.real.nats import NatsServer


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("https://X.example/a?b", "https://x.example:443"),
        ("http://x.example:8080/", "http://x.example:8080"),
        ("https://[2001:db8::1]/", "https://[2001:db8::1]:443"),
    ],
)
def test_an_endpoint_is_scheme_host_and_port(url: str, endpoint: str) -> None:
    assert origin(url) == endpoint


async def test_a_breaker_is_shown_while_it_is_not_closed(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(nats_server.url) as bus:
        endpoints = Endpoints(per_host=64)
        kept = Mirror(bus, "pod-1", endpoints)
        record = RuleRecord(
            rule=rule("hook", "https://x.example/hook", "llm.tool_call"),
            uid="uid-1",
            owner=user("u1"),
            created_at="",
            updated_at="",
        )
        webhook = record.rule.action.webhook
        assert webhook is not None
        compiled = CompiledRule(record, 0, frozenset(), None)
        breaker = endpoints.of(compiled, webhook).breaker
        await kept.update()
        assert await endpoints_of(bus) == []
        for _ in range(FAILURES):
            breaker.record_failure(0.0)
        await kept.update()
        [shown] = await endpoints_of(bus)
        assert (shown.endpoint, shown.state) == ("https://x.example:443", "open")
        assert (shown.process, shown.failures) == ("pod-1", FAILURES)
        assert breaker.admit(1e9) == 0.0
        await kept.update()
        [shown] = await endpoints_of(bus)
        assert shown.state == "half_open"
        [key] = await bus.bucket("endpoints").keys()
        await bus.bucket("endpoints").delete(key)
        monkeypatch.setattr(mirror, "RENEW_S", -1.0)
        await kept.update()
        await kept.update()
        assert len(await endpoints_of(bus)) == 1, "an entry that was lost is written anew"
        breaker.record_success()
        await kept.update()
        assert await endpoints_of(bus) == []
