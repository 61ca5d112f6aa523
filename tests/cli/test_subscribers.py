"""`penstock subscribers` makes, lists and deletes the durables of subscribers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.bus.admin import subscribers
from penstock.bus.admin.migrate import reshard
from penstock_cli.main import app
from support.drive.bus import connected, event, new_run_id
from support.real.nats import NatsServer


@pytest.fixture
async def nats(fresh_nats: NatsServer) -> NatsServer:
    """Return a NATS server with the streams and one stored event."""
    async with connected(fresh_nats.url) as bus:
        await bus.publisher.publish(event(new_run_id(), 1))
        return fresh_nats


def said(nats: NatsServer, *arguments: str) -> list[dict[str, Any]]:
    """Return the command's stdout, parsed as JSON lines."""
    result = CliRunner().invoke(app, ["subscribers", *arguments, "--json", "--nats", nats.url])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def listed(nats: NatsServer) -> dict[tuple[str, str], tuple[list[str], int]]:
    return {
        (row["durable"], row["stream"]): (row["events"], row["waiting"])
        for row in said(nats, "list")
    }


def test_durables_are_made_where_they_shall_begin_and_a_repeat_changes_nothing(
    nats: NatsServer,
) -> None:
    types = ["--event", "llm.*", "--event", "approval"]
    assert said(nats, "make", "a", *types) == [{"made": "the durable a of EVENTS"}]
    assert said(nats, "make", "a", "--from", "now") == []
    said(nats, "make", "b", "--from", "now")
    said(nats, "make", "c", "--from", "2026-01-01T00:00Z")
    said(nats, "make", "d", "--from", "2100-01-01T00:00+01:00")
    assert listed(nats) == {
        ("a", "EVENTS"): (["llm.*.*", "approval.*.*"], 1),
        ("b", "EVENTS"): ([], 0),
        ("c", "EVENTS"): ([], 1),
        ("d", "EVENTS"): ([], 0),
    }
    assert said(nats, "delete", "a") == [{"deleted": "the durable a of EVENTS"}]
    assert ("a", "EVENTS") not in listed(nats)


def test_a_durable_that_takes_other_events_is_named_and_not_changed(nats: NatsServer) -> None:
    said(nats, "make", "a", "--event", "llm.*")
    again = ["subscribers", "make", "a", "--event", "approval.*", "--nats", nats.url]
    result = CliRunner().invoke(app, again)
    assert result.exit_code == 1
    assert "the durable a exists, takes llm.*.*, and was not changed; delete it" in result.output
    assert said(nats, "make", "a", "--event", "llm.*") == []


async def test_a_new_shard_gets_durables_and_grants_of_the_first_from_its_first_event(
    nats: NatsServer,
) -> None:
    async with connected(nats.url) as bus:
        await subscribers.make(bus, subscribers.Durable("a", ("llm",), "now"))
        grant = subscribers.Grant(True, ("acme",))
        assert await subscribers.grant(bus, "a", grant) == ["EVENTS"]
        await reshard(bus, 2)
        made = await subscribers.ensure(bus)
        assert "the durable a of EVENTS_1" in made
        assert await subscribers.ensure(bus) == []
        config = (await bus.api("CONSUMER.INFO.EVENTS_1.a"))["config"]
        assert await subscribers.grant_to(bus, "EVENTS_1", "a") == grant
        assert await subscribers.grant_to(bus, "EVENTS_1", "b") == subscribers.SHAPE
    assert (config["deliver_policy"], config["filter_subjects"]) == ("all", ["llm.*.*"])


def test_a_grant_is_given_in_each_shard_shown_and_taken_back_and_moves_no_durable(
    nats: NatsServer,
) -> None:
    def grants() -> list[str]:
        return [row["grant"] for row in said(nats, "list") if row["durable"] == "a"]

    said(nats, "make", "a", "--event", "llm.*")
    before = listed(nats)
    assert grants() == ["shape"]
    given = {"durable": "the durable a of EVENTS", "grant": "content"}
    assert said(nats, "grant", "a", "content") == [given]
    assert grants() == ["content"]
    said(nats, "grant", "a", "content", "--tenant", "acme", "--tenant", "zoo")
    assert grants() == ["content of acme, zoo"]
    said(nats, "grant", "a", "shape")
    assert grants() == ["shape"]
    assert listed(nats) == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["grant", "nobody", "content"], 1, "there is no durable nobody"),
        (["grant", "approvals", "content"], 1, "approvals is a durable of a service"),
        (["grant", "a", "shape", "--tenant", "acme"], 2, "--tenant is for the grant content"),
        (["grant", "a", "everything"], 2, "is not one of"),
    ],
)
def test_a_grant_that_cannot_be_given_is_refused(
    nats: NatsServer, arguments: list[str], code: int, message: str
) -> None:
    result = CliRunner().invoke(app, ["subscribers", *arguments, "--nats", nats.url])
    assert result.exit_code == code
    assert message in " ".join(result.output.replace("│", "").split())


def test_the_permissions_of_the_user_are_shown(nats: NatsServer) -> None:
    result = CliRunner().invoke(app, ["subscribers", "make", "a-b", "--nats", nats.url])
    assert result.exit_code == 0
    assert '"$JS.penstock.API.CONSUMER.MSG.NEXT.EVENTS.a-b"' in result.output
    assert '"$JS.ACK.EVENTS.a-b.>"' in result.output
    assert '"runkey.a-b.*"' in result.output
    assert '"keygone.*"' in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["make", "a.b"], "a name has letters"),
        (["make", "a", "--event", "llm.>"], "no category.action"),
        (["make", "a", "--event", "a.b.c.d"], "no category.action"),
        (["make", "a", "--event", "aproval.*"], "there are no events 'aproval.*'; the categories"),
        (["make", "a", "--from", "yesterday"], "write beginning, now, or a time"),
        (["make", "a", "--from", "2026-01-01T00:00"], "needs a time zone"),
    ],
)
def test_what_cannot_be_is_refused(nats: NatsServer, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["subscribers", *arguments, "--nats", nats.url])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", "").split())


def test_a_service_s_durable_is_not_a_subscriber_s(nats: NatsServer) -> None:
    result = CliRunner().invoke(app, ["subscribers", "delete", "approvals", "--nats", nats.url])
    assert result.exit_code == 1
    assert "there is no subscriber's durable approvals" in result.output
