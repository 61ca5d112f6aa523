"""`penstock doctor` checks a deployment, and says what is wrong and what to do."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.budgets.admission import CurrentBudgets
from penstock.bus import BusSettings, Message, streams, subjects
from penstock.bus.admin import subscribers
from penstock.bus.admin.permissions import (
    NAMES,
    USER_INFO,
    USERS,
    User,
    configuration,
    with_shards,
)
from penstock.bus.records.budgets import BudgetAccount
from penstock.doctor import nats_facts
from penstock.doctor.checks import CHECKS, NEEDED, WAITING, run_checks
from penstock.doctor.facts import (
    AccountFact,
    AnswerFact,
    ConsumerFact,
    Facts,
    PartitionFact,
    StreamFact,
    Wanted,
)
from penstock.service import bus_settings
from penstock.settings.keep import parse_keep
from penstock_cli.main import app
from penstock_cli.operations import connection
from penstock_cli.operations.doctor import values
from penstock_cli.operations.doctor.permissions import differences
from support.drive.bus import connected, new_run_id, publish_events
from support.drive.dead_letters import a_cancel, buried, letter_about
from support.drive.repository import ROOT
from support.drive.waiting import eventually
from support.fakes.clocks import ShiftedClock, forget_the_dead, libfaketime
from support.fakes.issuer import JwksServer, Key
from support.real import upstreams
from support.real.deployment import Deployment
from support.real.nats import NatsServer, password_of, write_passwords
from support.real.servers import SharedRun

AGES_S = parse_keep(()).ages_s
HEALTHY = Facts(
    stored_bytes=10,
    max_stored_bytes=100,
    schema=5,
    streams=[StreamFact("EVENTS", schema=5, bytes=1, max_bytes=100, max_age_s=604_800)],
    consumers=[ConsumerFact("EVENTS", "approvals", 3, 0, polled=True)],
    partitions=[PartitionFact("RAW", 3, 4_999, held=True)],
    accounts=[AccountFact("day", "ada", 0.9)],
    users=[AnswerFact("edge", True)],
    permissions=[AnswerFact("edge", True)],
    auth=[AnswerFact("https://issuer.example/keys", True)],
    files=[AnswerFact("edge", True)],
    agents=[AnswerFact("assistant", True, ["fine"])],
    probes=[AnswerFact(f"http://{name}:9000", True, (), (), "a1b2c3") for name in "ab"],
    values=[],
    wanted=Wanted(1, 1, AGES_S),
)
EVENTS = StreamFact("EVENTS", schema=5, max_age_s=604_800)
BAD = [AnswerFact("it", False, ["the reason"])]
# For each check, what is different from HEALTHY, and what the finding says.
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "nats": ({"refusal": "nobody answers"}, "nobody answers"),
    "storage": ({"stored_bytes": 85}, "85%"),
    "streams": ({"streams": [replace(EVENTS, exists=False)]}, "no stream EVENTS"),
    "schema": ({"streams": [replace(EVENTS, schema=4)]}, "EVENTS has schema 4"),
    "settings": ({"streams": [replace(EVENTS, differs=["max_age is 1, not 2"])]}, "max_age is 1"),
    "content": ({"content": "sealed with the master key 1a2b3c4d"}, "the master key 1a2b3c4d"),
    "lag": ({"consumers": [ConsumerFact("EVENTS", "a", 10_000, 0, True)]}, "10000 messages"),
    "readers": ({"consumers": [ConsumerFact("EVENTS", "a", 1, 0, False)]}, "no process"),
    "normalizer": ({"partitions": [PartitionFact("RAW_2", 3, 5_000, True)]}, "3 of RAW_2 is 5000"),
    "partitions": ({"partitions": [PartitionFact("RAW", 3, 1, False)]}, "1 partitions of RAW"),
    "dead_letters": ({"dead_letters": 2}, "2 dead letters"),
    "budgets": ({"accounts": [AccountFact("day", "ada", 0.93)]}, "93% of the budget day of ada"),
    "prices": (
        {"accounts": [AccountFact("own", "run-1", 0.99, per_run=True, calls_without_cost=3)]},
        "3 calls of models do not count for the cost of the budget own",
    ),
    "clock": ({"clock_ahead_s": -7.0}, "7.0 s behind"),
    "files": ({"files": BAD}, "the reason"),
    "users": ({"users": BAD}, "the reason"),
    "permissions": ({"permissions": BAD}, "the reason"),
    "auth": ({"auth": BAD}, "the reason"),
    "agents": ({"agents": BAD}, "the reason"),
    "probes": ({"probes": BAD}, "the reason"),
    "notices": ({"probes": [AnswerFact("edge", True, (), ["data are lost"])]}, "data are lost"),
    "csrf": (
        {"probes": [AnswerFact(x, True, (), (), x) for x in ("a1b2c3", "d4e5f6")]},
        "a1b2c3 has a1b2c3, d4e5f6 has d4e5f6",
    ),
    "values": ({"values": ["$.egde: unknown"], "wanted": None}, "$.egde"),
    "installation": ({"shards": 4}, "streams.shards is 1, and the installation has 4"),
}


def test_a_healthy_deployment_passes_every_check() -> None:
    assert {each.verdict for each in run_checks(HEALTHY)} == {"ok"}


def test_every_check_has_a_fault_here() -> None:
    assert set(FAULTS) == {check.name for check in CHECKS}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check_alone_with_what_to_do(name: str) -> None:
    change, says = FAULTS[name]
    wrong = [each for each in run_checks(replace(HEALTHY, **change)) if each.verdict == "wrong"]
    assert [each.check for each in wrong] == [name]
    assert says in wrong[0].text
    assert wrong[0].to_do


def test_for_how_long_each_kind_is_kept_is_shown_as_the_streams_have_it() -> None:
    approvals = StreamFact("KV_approvals", schema=5)
    facts = replace(HEALTHY, streams=[EVENTS, approvals], early=["agent:a=2d"])
    [settings] = [each for each in run_checks(facts) if each.check == "settings"]
    assert settings.text.endswith(": events=7d, decisions=forever, agent:a=2d")


def test_two_processes_with_secrets_of_their_own_do_not_have_one_secret() -> None:
    probes = [AnswerFact(f"http://{name}:9000", True, (), (), "its own") for name in "ab"]
    wrong = [each for each in run_checks(replace(HEALTHY, probes=probes)) if each.verdict != "ok"]
    assert [(each.check, each.verdict) for each in wrong] == [("csrf", "wrong")]


def test_a_stream_near_its_own_limit_is_found() -> None:
    full = replace(HEALTHY, streams=[replace(EVENTS, bytes=80, max_bytes=100)])
    assert "EVENTS uses 80%" in next(e.text for e in run_checks(full) if e.verdict == "wrong")


def test_a_check_that_was_not_made_is_not_reported_as_fine() -> None:
    not_checked = {each.check for each in run_checks(Facts()) if each.verdict == "not_checked"}
    assert not_checked == set(NEEDED)
    away = {each.check: each.verdict for each in run_checks(Facts(refusal="nobody answers"))}
    assert set(away.values()) == {"wrong", "not_checked"}


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (Wanted(1, 3, AGES_S), "streams.replicas is 3, and EVENTS has 1"),
        (Wanted(1, 1, {**AGES_S, "events": 60}), "streams.keep.events is 1m, and EVENTS has 7d"),
    ],
)
def test_streams_that_are_not_as_the_values_say_are_found(wanted: Wanted, says: str) -> None:
    found = run_checks(replace(HEALTHY, wanted=wanted))
    assert [each.text.startswith(says) for each in found if each.verdict == "wrong"] == [True]


@pytest.mark.parametrize(
    ("stream", "loss"),
    [
        (replace(EVENTS, max_age_s=1_209_600), "has 14d (careful: a migration to the value"),
        (replace(EVENTS, max_age_s=0), "has forever (careful: a migration to the value deletes"),
        (replace(EVENTS, replicas=3), "has 3 (careful: a migration to the value takes copies"),
        (replace(EVENTS, max_age_s=60), "has 1m"),
    ],
)
def test_advice_that_would_lose_something_says_so(stream: StreamFact, loss: str) -> None:
    found = run_checks(replace(HEALTHY, streams=[stream]))
    (text,) = [each.text for each in found if each.verdict == "wrong"]
    assert loss in text
    assert ("careful" in text) == ("careful" in loss)


def granted(user: User, shards: int = 1, **changes: Any) -> dict[str, Any]:
    """Return what NATS says about a user with the permissions of the table."""
    full = with_shards(user, shards)
    rules: dict[str, Any] = {
        "publish": {"allow": [*full.publish]},
        "subscribe": {"allow": [*full.subscribe]},
    }
    return {"permissions": rules | ({"responses": {"max": 1}} if user.responds else {}) | changes}


@pytest.mark.parametrize("user", USERS, ids=lambda user: user.name)
def test_permissions_as_in_the_table_have_no_difference(user: User) -> None:
    assert differences(user, 1, granted(user)) == []
    assert differences(user, 1, granted(user, shards=3)) == []  # for a later migration


def test_each_difference_of_permissions_is_named() -> None:
    (edge,) = (user for user in USERS if user.name == "edge")
    less = replace(edge, publish=edge.publish[:-1], responds=False)
    assert differences(edge, 1, granted(less)) == [
        f"may not publish to {edge.publish[-1]}",
        "may not answer requests (allow_responses)",
    ]
    more = replace(edge, subscribe=(*edge.subscribe, "decide.*"))
    assert differences(edge, 1, granted(more)) == ["may subscribe to, and should not, decide.*"]
    denied = granted(edge, subscribe={"allow": [*edge.subscribe], "deny": ["live.>"]})
    assert differences(edge, 1, denied) == ["is denied to subscribe to live.>"]
    (shards,) = differences(edge, 4, granted(edge))
    assert shards.startswith("may not publish to $JS.API.CONSUMER.INFO.EVENTS_1.*, ")
    assert shards.endswith(" more")
    assert "everything" in differences(edge, 1, {"user": "edge"})[0]


def said(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the findings."""
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def wrong(findings: list[dict[str, Any]]) -> dict[str, str]:
    return {each["check"]: each["text"] for each in findings if each["verdict"] == "wrong"}


@pytest.fixture
async def nats(fresh_nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a server with every stream; PENSTOCK_NATS_PASSWORDS has the passwords."""
    async with connected(fresh_nats.url):
        pass
    folder = write_passwords(tmp_path / "passwords")
    for file in folder.iterdir():
        file.chmod(0o600)
    monkeypatch.setenv("PENSTOCK_NATS_PASSWORDS", str(folder))
    return fresh_nats.url


def test_a_real_deployment_without_a_fault(nats: str, tmp_path: Path) -> None:
    values = tmp_path / "mine.yaml"
    values.write_text("image: {registry: registry.example.com}\n")
    chart = str(ROOT / "deploy/helm/penstock")
    code, findings = said("--nats", nats, "--values", str(values), "--chart", chart)
    assert wrong(findings) == {}
    assert code == 0
    left = {each["check"] for each in findings if each["verdict"] == "not_checked"}
    assert left == {"auth", "agents", "probes", "notices", "csrf"}


def test_faults_of_a_real_deployment(nats: str, tmp_path: Path) -> None:
    (tmp_path / "passwords" / "edge").write_text("another")
    (tmp_path / "passwords" / "connector").chmod(0o644)
    values = tmp_path / "mine.yaml"
    values.write_text("egde: {}\n")
    config = tmp_path / "penstock.yaml"
    agent = "{id: a, protocol: agui, url: 'http://127.0.0.1:9/agui'}"
    config.write_text(f"agents: [{agent}]\n")
    code, findings = said(
        *("--nats", nats, "--config", str(config), "--probe", "http://127.0.0.1:9"),
        *("--values", str(values), "--chart", str(ROOT / "deploy/helm/penstock")),
    )
    assert code == 1
    found = wrong(findings)
    assert set(found) == {"users", "files", "values", "agents", "probes"}
    assert found["users"].startswith("edge: ")
    assert "connector" in found["files"]
    assert "egde" in found["values"]


def test_a_key_service_that_is_away_is_a_finding_and_everything_else_is_checked(
    nats: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CONTENT_KEYS", "kms:0123abcd:vault:v1:wrapped")
    monkeypatch.setenv("PENSTOCK_KMS_URL", "http://127.0.0.1:9/v1/transit/keys/penstock")
    code, findings = said("--nats", nats)
    assert code == 1
    ((check, text),) = wrong(findings).items()
    assert check == "content"
    assert text.startswith("the key service at http://127.0.0.1:9 does not answer")


async def test_users_that_may_do_less_or_more_than_the_table_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the accounts of an earlier version, and somebody has extended the edge's."""
    passwords = {user: json.dumps(password_of(user)) for user in NAMES}
    accounts = configuration(passwords).replace(f'          "{USER_INFO}"\n', "", 1)
    edge = accounts.index("user: edge")
    start = '          "command.connector.start.*"\n'
    accounts = accounts[:edge] + accounts[edge:].replace(start, '"decide.>"\n', 1)
    server = NatsServer(
        tmp_path / "nats", name="nats", config=f"{accounts}no_auth_user: operator\n", users=False
    )
    server.start()
    try:
        async with connected(server.url):
            pass
        folder = write_passwords(tmp_path / "passwords")
        monkeypatch.setenv("PENSTOCK_NATS_PASSWORDS", str(folder))
        _, findings = await _in_thread("--nats", server.url)
        texts = [each["text"] for each in findings if each["check"] == "permissions"]
        assert texts == [
            f"connector: may not ask for its permissions ({USER_INFO}), so they are of another "
            "version",
            "edge: may not publish to command.connector.start.*; may publish to, and should not, "
            "decide.>",
        ]
    finally:
        server.allow_violations()
        server.remove()


async def test_frames_that_no_normalizer_reads_and_streams_unlike_the_values_are_found(
    nats: str, tmp_path: Path
) -> None:
    async with connected(nats) as bus:
        run_id = new_run_id()
        await bus.publisher.publish(Message(subjects.raw(run_id, "upstream"), b"x", {}))
    values = tmp_path / "mine.yaml"
    values.write_text("streams: {replicas: 3, keep: {raw: 3600s}}\n")
    chart = str(ROOT / "deploy/helm/penstock")
    _, findings = await _in_thread("--nats", nats, "--values", str(values), "--chart", chart)
    texts: dict[str, list[str]] = {}
    for each in findings:
        if each["verdict"] == "wrong":
            texts.setdefault(each["check"], []).append(each["text"])
    assert set(texts) == {"partitions", "installation"}
    assert texts["partitions"][0].startswith("1 partitions of RAW have source frames")
    replicas, age = texts["installation"]
    assert re.fullmatch(r"streams.replicas is 3, and \w+(, \w+){4} and \d+ more have 1", replicas)
    assert age == (
        "streams.keep.raw is 1h, and RAW has 1d (careful: a migration to the value deletes all "
        "older messages)"
    )


def test_several_files_of_values_are_merged_in_their_order(nats: str, tmp_path: Path) -> None:
    """A wrong value from one file alone would advise to delete events."""
    chart = ROOT / "deploy/helm/penstock"
    own = tmp_path / "mine.yaml"
    own.write_text("streams: {replicas: 1}\n")
    options = ["--chart", str(chart), "--values", str(chart / "values/usual.yaml")]
    _, findings = said("--nats", nats, *options, "--values", str(own))
    assert wrong(findings) == {}
    own.write_text("image: {registry: registry.example.com}\n")
    _, findings = said("--nats", nats, *options, "--values", str(own))
    assert wrong(findings)["installation"].startswith("streams.replicas is 3, and ")


def test_null_in_a_file_of_values_removes_the_default_and_a_later_file_sets_it_again(
    tmp_path: Path,
) -> None:
    chart = ROOT / "deploy/helm/penstock"
    files = [tmp_path / "null.yaml", tmp_path / "mine.yaml"]
    files[0].write_text("streams: null\n")
    files[1].write_text("streams: {replicas: 5}\n")
    assert values.read(chart, files).wanted == Wanted(1, 5, AGES_S)
    assert values.read(chart, files[:1]).wrong[0] == (
        "$.streams.shards: null removes the value, and the chart needs it"
    )
    files[1].write_text("- no mapping\n")
    assert values.read(chart, files).wrong == [f"{files[1]} has no mapping of values"]


@pytest.mark.real
async def test_a_provider_at_which_nobody_could_sign_in_is_found(
    nats: str, test_run: SharedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = upstreams.shared(upstreams.OIDC, test_run).url
    configuration = f"{provider}/.well-known/openid-configuration"
    monkeypatch.setenv("PENSTOCK_OIDC_CLIENT_ID", "penstock")

    async def auth(issuer: str) -> str:
        monkeypatch.setenv("PENSTOCK_OIDC_ISSUER", issuer)
        _, findings = await _in_thread("--nats", nats)
        return wrong(findings).get("auth", "")

    assert await auth(provider) == ""
    told = f"{configuration}: its configuration is that of the issuer {provider!r}"
    assert await auth(f"{provider}/") == told
    assert "no answer" in await auth("http://127.0.0.1:9")


async def test_keys_of_an_issuer_that_cannot_be_used_are_found(
    nats: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def auth(url: str) -> str:
        monkeypatch.setenv("PENSTOCK_AUTH_JWKS_URL", url)
        _, findings = await _in_thread("--nats", nats)
        return wrong(findings).get("auth", "")

    issuer = JwksServer()
    issuer.keys = [Key("one", "ES256")]
    await issuer.start()
    try:
        assert await auth(issuer.url) == ""
        monkeypatch.setenv("PENSTOCK_AUTH_ALGORITHMS", "ES512")
        assert await auth(issuer.url) == f"{issuer.url}: it has no key for ES512"
        monkeypatch.delenv("PENSTOCK_AUTH_ALGORITHMS")
        issuer.status = 404
        assert await auth(issuer.url) == f"{issuer.url}: it answers with status 404"
        issuer.status = 200
        monkeypatch.setenv("ALLOW_UNAUTHENTICATED_SSE", "true")
        assert "anonymous" in await auth(issuer.url)
    finally:
        await issuer.stop()
    monkeypatch.delenv("ALLOW_UNAUTHENTICATED_SSE")
    assert "no answer" in await auth("http://127.0.0.1:9/keys")
    values = tmp_path / "mine.yaml"
    values.write_text("auth: {jwksUrl: 'http://127.0.0.1:9/of-the-values'}\n")
    monkeypatch.delenv("PENSTOCK_AUTH_JWKS_URL")
    chart = str(ROOT / "deploy/helm/penstock")
    _, findings = await _in_thread("--nats", nats, "--values", str(values), "--chart", chart)
    assert wrong(findings)["auth"].startswith("http://127.0.0.1:9/of-the-values: no answer")


async def test_a_missing_stream_and_a_reader_that_is_away_are_found(nats: str) -> None:
    async with connected(nats) as bus:
        await publish_events(bus, new_run_id(), 1, 3)
        durable = {"durable_name": "approvals", "ack_policy": "explicit"}
        body = {"stream_name": streams.EVENTS, "config": durable}
        await bus.api("CONSUMER.DURABLE.CREATE.EVENTS.approvals", body)
        await bus.api("STREAM.DELETE.JOURNAL")
    code, findings = await _in_thread("--nats", nats)
    assert code == 1
    assert wrong(findings) == {
        "streams": "there is no stream JOURNAL",
        "readers": "approvals of EVENTS has 3 messages, and no process asks for them",
    }


async def test_the_subscribers_durable_is_only_judged_when_a_program_has_used_it(nats: str) -> None:
    async with connected(nats) as bus:
        await subscribers.ensure(bus)
        await publish_events(bus, new_run_id(), 1, 3)
        code, findings = await _in_thread("--nats", nats)
        assert (code, wrong(findings)) == (0, {})
        [readers] = [each for each in findings if each["check"] == "readers"]
        assert readers["text"].startswith("a process takes the messages of every durable consumer")
    assert nats_facts._is_unused({"name": "subscriber", "delivered": {"consumer_seq": 0}})
    assert not nats_facts._is_unused({"name": "subscriber", "delivered": {"consumer_seq": 1}})
    assert not nats_facts._is_unused({"name": "approvals", "delivered": {"consumer_seq": 0}})


async def test_faults_of_streams_that_nobody_looks_after_are_found(
    nats: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames wait for a reader and a normalizer; streams are old and full."""
    async with connected(nats) as bus:
        subject = subjects.raw(new_run_id(), "upstream")
        for _ in range(WAITING):
            await bus.jetstream.connection.publish(subject, b"x")
        raw = streams.raw_for(subject.split(".")[1])
        durable = {"durable_name": "late", "ack_policy": "explicit"}
        body = {"stream_name": raw, "config": durable}
        await bus.api(f"CONSUMER.DURABLE.CREATE.{raw}.late", body)

        async def are_stored() -> bool:
            return int((await bus.api(f"STREAM.INFO.{raw}"))["state"]["messages"]) == WAITING

        await eventually(are_stored, 30, "the frames are stored")
        await buried(bus, letter_about(a_cancel()))
        day = {"id": "day", "per": "user", "limit": {"cost": "1 EUR"}}
        budgets = [{**day, "at": [{"share": 1, "do": "refuse"}]}]
        await CurrentBudgets(bus).apply({"version": 1, "budgets": budgets}, "root")
        spent = {"cost": 950_000, "without_cost": 2}
        account = BudgetAccount(budget="day", per="user", subject="ada", used=spent)
        await bus.bucket("budgets").put("account.ada", account.dump())
        info = await bus.api("STREAM.INFO.DEADLETTERS")
        full = {**info["config"], "max_bytes": info["state"]["bytes"]}
        await bus.api("STREAM.UPDATE.DEADLETTERS", full)
        config = (await bus.api("STREAM.INFO.JOURNAL"))["config"]
        old = {**config, "metadata": {**config["metadata"], streams.SCHEMA_KEY: "4"}}
        await bus.api("STREAM.UPDATE.JOURNAL", old)
    monkeypatch.setenv("PENSTOCK_KEEP", "events=1h")
    code, findings = await _in_thread("--nats", nats)
    assert code == 1
    found = wrong(findings)
    assert set(found) == {
        *("storage", "schema", "settings", "lag", "readers", "normalizer", "partitions"),
        *("dead_letters", "budgets", "prices"),
    }
    assert found["budgets"] == "95% of the budget day of ada is taken"
    assert found["prices"].startswith("2 calls of models do not count")
    assert found["storage"].startswith("DEADLETTERS uses 100%")
    assert found["schema"].startswith("JOURNAL has schema 4, ")
    assert found["settings"].startswith("EVENTS: ")
    assert found["lag"] == f"late of {raw} has {WAITING} messages to deliver"
    assert found["normalizer"].endswith(f" of {raw} is {WAITING} frames ahead of the events")
    assert found["dead_letters"] == "there is a dead letter"


@pytest.mark.chaos
@pytest.mark.real
@pytest.mark.skipif(libfaketime() is None, reason="libfaketime is not installed (apt: faketime)")
async def test_wrong_clocks_of_a_service_and_of_the_own_machine_are_found(
    nats: str, tmp_path: Path
) -> None:
    library = libfaketime()
    assert library is not None
    clock = ShiftedClock(library, tmp_path / "clock")
    clock.set(45)
    config = tmp_path / "penstock.yaml"
    config.write_text("agents: []\n")
    penstock = Deployment(tmp_path, config, nats, {})
    try:
        edge = await penstock.start("edge", before=clock.command, probe="livez")

        async def probes() -> str:
            _, findings = await _in_thread("--nats", nats, "--probe", edge.probes)
            return wrong(findings).get("probes", "")

        assert "clock" in await eventually(probes, 30, "the edge is not ready")
        program = [*clock.command, sys.executable, "-m", "penstock_cli", "doctor", "--json"]
        shifted = await asyncio.create_subprocess_exec(
            *program, "--nats", nats, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await shifted.communicate()
    finally:
        await penstock.stop()
        forget_the_dead()
    assert shifted.returncode == 1
    (finding,) = wrong([json.loads(line) for line in output.splitlines()]).items()
    assert finding[0] == "clock"
    assert re.fullmatch(
        r"the clock of this machine is 4[45]\.\d s ahead of that of NATS", finding[1]
    )


async def _in_thread(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    return await asyncio.to_thread(said, *arguments)


def test_a_nats_that_is_away_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(*arguments: Any) -> BusSettings:
        return replace(bus_settings(*arguments), connect_timeout_s=0.5)

    monkeypatch.setattr(connection, "bus_settings", quick)
    monkeypatch.delenv("PENSTOCK_NATS_PASSWORDS", raising=False)
    code, findings = said("--nats", "nats://127.0.0.1:9")
    assert code == 1
    assert set(wrong(findings)) == {"nats"}
