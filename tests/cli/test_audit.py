"""`penstock approvals audit` finds what somebody with all rights on NATS has done to the audit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock.bus import Bus, Message
from penstock.bus.admin.permissions import OPERATOR
from penstock.bus.read import direct
from penstock.bus.streams import AUDIT
from penstock.service import bus_settings
from penstock.settings import Settings, read_settings
from penstock_approvals.audit.chain import Entry, link, parse
from penstock_approvals.audit.trail import Audit
from penstock_cli.local.embedded_nats import EmbeddedNats, as_embedded
from penstock_cli.main import app
from support.drive.bus import connected
from support.real.nats import NatsServer

ONE, TWO = "00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002"
Stored = list[tuple[str, bytes]]
Change = Callable[[Stored], Stored]


@pytest.fixture
def nats(fresh_nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> NatsServer:
    for name in ("NATS_URL", "NATS_USER", "NATS_PASSWORD", "AUDIT_KEY"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    return fresh_nats


def on(nats: NatsServer, work: Callable[[Bus], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with connected(nats.url) as bus:
            return await work(bus)

    return asyncio.run(run())


def entry(number: int) -> Entry:
    return Entry(approval_id="a", event="voted", at="2026-01-01T10:00:00Z", which=str(number))


def penstock(nats: NatsServer, *arguments: str) -> Result:
    given = ["approvals", "audit", *arguments, "--nats", nats.url]
    return CliRunner().invoke(app, given, catch_exceptions=False)


def filled(nats: NatsServer) -> str:
    """Write two runs with three records each and an anchor; return the anchor's hash."""

    async def fill(bus: Bus) -> None:
        for run_id in (ONE, TWO):
            await Audit(bus).append(run_id, *map(entry, range(3)))

    on(nats, fill)
    taken = penstock(nats, "--take-anchor")
    assert taken.exit_code == 0, taken.output
    return taken.stdout.strip()


def tamper(nats: NatsServer, change: Change) -> None:
    """Replace the whole stream, as somebody with all rights can do."""

    async def replace(bus: Bus) -> None:
        stored = [(each.subject, each.payload) async for each in direct.replay(bus, AUDIT, ">")]
        config = (await bus.api(f"STREAM.INFO.{AUDIT}"))["config"]
        await bus.api(f"STREAM.DELETE.{AUDIT}")
        await bus.api(f"STREAM.CREATE.{AUDIT}", config)
        for subject, payload in change(stored):
            await bus.publisher.publish(Message(subject, payload, {}))

    on(nats, replace)


def test_an_intact_audit_is_verified(nats: NatsServer) -> None:
    anchor = filled(nats)
    result = penstock(nats, "--verify", "--anchor", anchor)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "6 records of 2 runs, 1 anchors: intact" in result.stderr
    assert anchor in result.stderr
    alone = json.loads(penstock(nats, "--verify", "--run", ONE, "--json").stdout)
    assert (alone["runs"], alone["records"], alone["findings"]) == (1, 3, [])


CHANGES: dict[str, tuple[Change, str]] = {
    "a changed byte": (
        lambda all_: [(all_[0][0], all_[0][1].replace(b"a.voted", b"b.voted")), *all_[1:]],
        f"run {ONE}, record 1: its content does not fit its hash (stream sequence 1)",
    ),
    "a removed record": (
        lambda all_: [*all_[:1], *all_[2:]],
        f"run {ONE}, record 3: record 2 is missing before it (stream sequence 2)",
    ),
    "a cut end": (
        lambda all_: [*all_[:2], *all_[3:]],
        f"run {ONE}: its end was cut after record 2: anchor 1 names record 3",
    ),
    "a removed run": (
        lambda all_: all_[3:],
        f"run {ONE}: all its records were removed: anchor 1 names record 3",
    ),
    "an inserted record": (
        lambda all_: [
            all_[0],
            (all_[0][0], link(ONE, entry(9), parse(all_[0][1])).payload),
            *all_[1:],
        ],
        f"run {ONE}, record 2: it was inserted: there is a record 2 before it (stream sequence 3)",
    ),
    "records in another order": (
        lambda all_: [all_[1], all_[0], *all_[2:]],
        f"run {ONE}, record 2: record 1 is missing before it (stream sequence 1)",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_done_to_the_audit_is_named(nats: NatsServer, name: str) -> None:
    change, finding = CHANGES[name]
    filled(nats)
    tamper(nats, change)
    result = penstock(nats, "--verify")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (1, finding)
    assert "1 anchors: " in result.stderr
    assert "intact" not in result.stderr
    one, two = (penstock(nats, "--verify", "--run", run_id) for run_id in (ONE, TWO))
    assert (one.exit_code, two.exit_code) == (1, 0)


@pytest.mark.parametrize("name", [None, *CHANGES])
def test_an_export_is_verified_without_a_server_as_the_audit_itself(
    nats: NatsServer, tmp_path: Path, name: str | None
) -> None:
    filled(nats)
    if name is not None:
        tamper(nats, CHANGES[name][0])
    exported, of_one = penstock(nats, "--export"), penstock(nats, "--export", "--run", ONE)
    chains = [json.loads(line)["chain"] for line in exported.stdout.splitlines()]
    found = [json.loads(line)["chain"] for line in of_one.stdout.splitlines()]
    assert found == [chain for chain in chains if chain in (ONE, "anchor")]
    server, there = penstock(nats, "--verify"), tmp_path / "audit.jsonl"
    there.write_text(exported.stdout)
    there_too = CliRunner().invoke(app, ["approvals", "audit", "--verify", "--from", str(there)])
    assert (there_too.exit_code, there_too.stdout) == (server.exit_code, server.stdout)
    assert server.exit_code == (name is not None)


def test_a_byte_that_is_no_text_is_exported_and_found(nats: NatsServer, tmp_path: Path) -> None:
    filled(nats)
    tamper(
        nats, lambda all_: [(all_[0][0], all_[0][1].replace(b"voted", b"vot\xff\xed")), *all_[1:]]
    )
    there = tmp_path / "audit.jsonl"
    there.write_text(penstock(nats, "--export").stdout)
    assert b"vot\xff\xed" in json.loads(there.read_text().splitlines()[0])["record"].encode(
        errors="surrogateescape"
    )
    result = CliRunner().invoke(app, ["approvals", "audit", "--verify", "--from", str(there)])
    assert (result.exit_code, f"run {ONE}, record 1" in result.stdout) == (1, True)


@pytest.mark.parametrize(
    "text", ["{}\n", "no JSON\n", "[]\n", '{"chain":1,"sequence":1,"record":2}']
)
def test_a_file_that_is_no_export_is_not_intact(tmp_path: Path, text: str) -> None:
    there = tmp_path / "audit.jsonl"
    there.write_text(text)
    result = CliRunner().invoke(app, ["approvals", "audit", "--verify", "--from", str(there)])
    assert (result.exit_code, "line 1 of" in result.stderr) == (1, True)


def test_the_audit_of_a_penstock_up_is_found_by_its_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server has an own port and own passwords, and the command's user may read the audit."""
    for name in ("NATS_URL", "NATS_USER", "NATS_PASSWORD", "NATS_PASSWORDS", "AUDIT_KEY"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)

    async def as_approvals(data: Path, url: str) -> None:
        settings = as_embedded(read_settings(Settings), url, data)
        await (await Bus.connect(bus_settings(settings, "test", OPERATOR))).close()
        bus = await Bus.connect(bus_settings(settings, "test", "approvals"), ensure=False)
        await Audit(bus).append(ONE, entry(0))
        await bus.close()

    async def serve() -> None:
        nats = EmbeddedNats(Path(".penstock"))
        await nats.start()
        try:
            await as_approvals(nats.data, nats.url)
            for arguments, end in ((["--take-anchor"], ""), (["--verify"], "1 anchors: intact")):
                command = ["approvals", "audit", *arguments]
                result = await asyncio.to_thread(CliRunner().invoke, app, command)
                assert (result.exit_code, end in result.stderr) == (0, True), result.output
        finally:
            await nats.stop()

    monkeypatch.chdir(tmp_path)
    asyncio.run(serve())


def test_an_audit_that_was_written_anew_is_found_by_the_anchor_that_was_kept(
    nats: NatsServer,
) -> None:
    anchor = filled(nats)
    tamper(nats, lambda all_: all_[:2])  # the anchor is removed, too
    assert penstock(nats, "--take-anchor").exit_code == 0
    assert penstock(nats, "--verify").exit_code == 0  # this alone cannot find it
    result = penstock(nats, "--verify", "--anchor", anchor)
    assert result.exit_code == 1
    assert f"there is no anchor {anchor}" in result.stdout


def test_an_audit_that_was_written_anew_is_found_by_a_key_that_the_writer_does_not_have(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_AUDIT_KEY", "the-key")
    filled(nats)
    assert penstock(nats, "--verify").exit_code == 0
    tamper(nats, lambda all_: all_[:2])
    monkeypatch.setenv("PENSTOCK_AUDIT_KEY", "a-guess")
    assert penstock(nats, "--take-anchor").exit_code == 0
    monkeypatch.setenv("PENSTOCK_AUDIT_KEY", "the-key")
    result = penstock(nats, "--verify")
    assert (result.exit_code, result.stdout) == (
        1,
        "the anchors: no anchor is signed with this key\n",
    )


def test_an_anchor_without_a_key_is_not_put_after_a_signed_one(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_AUDIT_KEY", "the-key")
    filled(nats)
    monkeypatch.delenv("PENSTOCK_AUDIT_KEY")
    result = penstock(nats, "--take-anchor")
    assert (result.exit_code, "set PENSTOCK_AUDIT_KEY" in result.stderr) == (2, True)


def test_an_audit_without_records_has_no_anchor(nats: NatsServer) -> None:
    assert on(nats, lambda bus: bus.has(AUDIT))
    assert penstock(nats, "--verify").exit_code == 0
    taken = penstock(nats, "--take-anchor")
    assert (taken.exit_code, "nothing to anchor" in taken.stderr) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--verify", "--take-anchor"),
        ("an-approval", "--verify"),
        ("an-approval", "--run", ONE),
        ("--take-anchor", "--anchor", "0"),
        ("--verify", "--run", "*"),
        ("--export", "--verify"),
        ("--export", "--from", "a-file"),
        ("--verify", "--from", "no-such-file"),
    ],
)
def test_wrong_usage_is_refused(nats: NatsServer, arguments: tuple[str, ...]) -> None:
    on(nats, lambda bus: bus.has(AUDIT))
    assert penstock(nats, *arguments).exit_code == 2
