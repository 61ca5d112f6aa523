"""`penstock streams` shows how the streams are configured and changes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock_cli.main import app
from support.drive.bus import connected, event, new_run_id
from support.real.nats import NatsServer


@pytest.fixture
async def nats(fresh_nats: NatsServer) -> NatsServer:
    """Return a NATS server on which the streams have been made."""
    async with connected(fresh_nats.url):
        return fresh_nats


def said(nats: NatsServer, *arguments: str) -> list[dict[str, Any]]:
    """Return the command's stdout, parsed as JSON lines."""
    result = CliRunner().invoke(app, ["streams", *arguments, "--json", "--nats", nats.url])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_streams_are_shown_with_what_differs_from_the_settings(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_KEEP", "events=1h")
    shown = {row["stream"]: row for row in said(nats, "show")}
    assert shown["RAW"]["partitions"] == 16
    assert shown["RAW"]["differs"] == []
    assert shown["EVENTS"]["differs"] == [f"max_age is {7 * 86400 * 10**9}, not {3600 * 10**9}"]


def test_a_migration_changes_what_the_settings_say_and_nothing_when_it_is_repeated(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_KEEP", "events=1h")
    [planned] = said(nats, "migrate", "--dry-run")
    assert (planned["stream"], planned["outcome"]) == ("EVENTS", "would change")
    [changed] = said(nats, "migrate")
    assert (changed["stream"], changed["outcome"]) == ("EVENTS", "changed")
    assert said(nats, "migrate") == []


def test_the_runs_are_divided_anew(nats: NatsServer) -> None:
    arguments = ["streams", "migrate", "--partitions", "24", "--nats", nats.url]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "RAW: changed partitions: 16 → 24" in result.stdout
    [raw] = [row for row in said(nats, "show") if row["stream"] == "RAW"]
    assert raw["partitions"] == 24


def test_what_cannot_be_is_refused(nats: NatsServer) -> None:
    arguments = ["streams", "migrate", "--partitions", "0", "--nats", nats.url]
    assert CliRunner().invoke(app, arguments).exit_code == 2


FIRST, SECOND = "a" * 32, "b" * 32


@pytest.fixture
async def sealed(nats: NatsServer) -> NatsServer:
    """Return a NATS server with an event whose content is sealed with the first key."""
    async with connected(nats.url, content_keys=(FIRST,)) as bus:
        await bus.publisher.publish(event(new_run_id(), 1))
        return nats


def test_keys_of_runs_are_wrapped_with_the_first_key(
    sealed: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CONTENT_KEYS", f"{SECOND},{FIRST}")
    assert said(sealed, "rewrap") == [{"keys": 1, "rewrapped": 1}]
    monkeypatch.setenv("PENSTOCK_CONTENT_KEYS", SECOND)
    assert said(sealed, "rewrap") == [{"keys": 1, "rewrapped": 0}]
    monkeypatch.delenv("PENSTOCK_CONTENT_KEYS")
    result = CliRunner().invoke(app, ["streams", "rewrap", "--nats", sealed.url])
    assert result.exit_code != 0
    assert "set PENSTOCK_CONTENT_KEYS" in result.output
