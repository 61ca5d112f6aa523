"""The service's own NATS user may do what the routes ask for, also with several shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.bus.admin.migrate import reshard
from penstock.bus.state import deadletters
from penstock_automations.actions.webhook.mirror import endpoints_of
from support.drive.automations_api import automations_api
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.fakes.receiver import SECRET, answers
from support.real.nats import NatsServer, write_passwords


async def test_every_route_works_with_the_services_own_nats_user(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    async with connected(fresh_nats.url) as bus:
        await reshard(bus, 3, settle_s=0)
    passwords = write_passwords(tmp_path)
    async with automations_api(fresh_nats.url, passwords, retry_delays_s=[]) as api:
        since = api.bus.clock.stamp()
        await api.make("hook")
        api.receiver.usual["/hook"] = answers(503)
        runs = [await api.completed() for _ in range(6)]

        async def failed() -> list[dict[str, Any]] | None:
            found = (await api.ask("GET", "/hook/deliveries", status="failed")).json()
            listed: list[dict[str, Any]] = found["deliveries"]
            return listed if len(listed) >= 5 else None

        deliveries = await eventually(failed, what="failed deliveries")
        assert deliveries is not None

        async def mirrored() -> bool:
            return bool(await endpoints_of(api.bus))

        await eventually(mirrored, what="the breaker's state in KV")
        first = deliveries[0]["id"]
        requests: list[tuple[str, str, Any]] = [
            ("GET", "", None),
            ("GET", "/hook", None),
            ("PUT", "/hook", api.rule("hook")),
            ("PATCH", "/hook", {"name": "x"}),
            ("POST", "/hook/pause", None),
            ("POST", "/hook/resume", None),
            ("POST", "/hook/secrets", {"secret": SECRET}),
            ("DELETE", "/hook/secrets/previous", None),
            ("POST", "/hook/test", None),
            ("POST", "/hook/dry-run", {"since": since}),
            ("GET", "/endpoints", None),
            ("GET", "/deliveries", None),
            ("GET", f"/hook/deliveries/{first}", None),
            ("POST", f"/hook/deliveries/{first}/replay", None),
            ("POST", "/hook/replay", {}),
            ("POST", "/replay", {}),
        ]
        for method, path, body in requests:
            answer = await api.ask(method, path, body=body)
            assert answer.status_code in (200, 202), f"{method} {path}: {answer.text}"
            if path == "/hook/dry-run":
                assert answer.json()["looked_at"] == len(runs)
        marks = [each.mark async for each in deadletters.letters(api.bus, "automations")]
        assert any(mark is not None for mark in marks)
        assert (await api.ask("DELETE", "/hook")).status_code == 200
