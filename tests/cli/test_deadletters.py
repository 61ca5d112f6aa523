"""`penstock deadletters` runs against a real NATS server with dead letters."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from penstock.bus import Bus, BusSettings
from penstock.bus.state.deadletters import DeadLetter, Letter
from penstock_cli.main import app
from penstock_cli.terminal.output import Output
from support.drive.bus import connected, new_run_id
from support.drive.dead_letters import a_cancel, all_letters, buried, letter_about, stored_command
from support.real.nats import NatsServer, write_passwords

Invoke = Callable[..., Result]


@pytest.fixture
def nats(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> NatsServer:
    """Return a server that Penstock has used; no variable of the environment names another one."""
    for name in ("PENSTOCK_NATS_URL", "PENSTOCK_NATS_USER", "PENSTOCK_NATS_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    return nats_server


@pytest.fixture
def service() -> str:
    """Return a service's name that only this test uses, so that it finds its own dead letters."""
    return f"s{secrets.token_hex(6)}"


def on(nats: NatsServer, work: Callable[[Bus], Awaitable[Any]]) -> Any:
    """Return the result of `work`, which gets a connection of its own."""

    async def run() -> Any:
        async with connected(nats.url) as bus:
            return await work(bus)

    return asyncio.run(run())


def with_letter(nats: NatsServer, letter: DeadLetter) -> Letter:
    found: Letter = on(nats, lambda bus: buried(bus, letter))
    return found


def kept(nats: NatsServer, service: str) -> int:
    """Return the number of this service's dead letters."""
    return len(on(nats, lambda bus: all_letters(bus, service)))


@pytest.fixture
def penstock(nats: NatsServer) -> Invoke:
    return lambda *arguments: CliRunner().invoke(
        app, ["deadletters", *arguments, "--nats", nats.url]
    )


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_list_has_the_newest_last_and_says_why(
    nats: NatsServer, penstock: Invoke, service: str
) -> None:
    first = with_letter(nats, letter_about(a_cancel(), service=service))
    second = with_letter(nats, letter_about(f"rawp.3.{new_run_id()}.x", service=service))
    result = penstock("list", "--service", service)
    assert result.exit_code == 0
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["number", "at", "service", "run", "from", "state", "reason"]
    for row, found in zip(rows, (first, second), strict=True):
        assert row.startswith(str(found.number))
        assert found.letter.run_id in row
        assert "ValueError('as the test wants')" in row
    assert "command.connector.cancel #1" in rows[0]
    assert "rawp.3.…x #1" in rows[1]


def test_with_json_the_list_is_one_object_a_line(
    nats: NatsServer, penstock: Invoke, service: str
) -> None:
    letter = letter_about(a_cancel(), b"secret", service=service, headers={"A": "b"})
    found = with_letter(nats, letter)
    [line] = lines(penstock("list", "--service", service, "--json"))
    assert line == {
        "number": found.number,
        "state": "waiting",
        "at": found.letter.at,
        "service": service,
        "pod": "pod-1",
        "run_id": found.letter.run_id,
        "subject": found.letter.subject,
        "sequence": 1,
        "delivered": 5,
        "reason": "ValueError('as the test wants')",
        "traceback_id": found.letter.traceback_id,
        "bytes": 6,
    }


def test_the_list_is_narrowed(nats: NatsServer, penstock: Invoke, service: str) -> None:
    run_id = new_run_id()
    one = with_letter(nats, letter_about(a_cancel(run_id), service=service)).number
    other = with_letter(nats, letter_about(a_cancel(), service=f"{service}-2")).number

    def numbers(*options: str) -> set[int]:
        return {line["number"] for line in lines(penstock("list", "--json", *options))}

    assert {one, other} <= numbers()
    assert {one, other} <= numbers("--since", "1h")
    assert numbers("--service", service) == {one}
    assert numbers("--run", run_id) == {one}
    assert numbers("--since", "2200-01-01T00:00:00Z") == set()
    none = penstock("list", "--service", f"{service}-3")
    assert (none.exit_code, none.stderr) == (0, "there are no dead letters like that\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "--since", "yesterday"], "neither like 15m"),
        (["list", "--service", "a.b"], "'a.b' is not allowed"),
        (["list", "--run", ">"], "'>' is not allowed"),
        (["replay"], "say --all"),
        (["replay", "1", "--all"], "say --all"),
        (["drop"], "say --all"),
        (["drop", "1", "--service", "edge"], "go with --all"),
        (["show", "0"], "greater than or equal to 1"),
    ],
)
def test_an_invalid_filter_is_an_error(penstock: Invoke, arguments: list[str], words: str) -> None:
    result = penstock(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())


def test_a_letter_is_shown_whole(nats: NatsServer, penstock: Invoke) -> None:
    payload = b'{"run_id": "x", "by": "ada"}'
    letter = letter_about(a_cancel(), payload, headers={"traceparent": "00-1"})
    number = str(with_letter(nats, letter).number)
    shown = penstock("show", number)
    assert shown.exit_code == 0
    for words in (letter.traceback_id, letter.subject, letter.reason, "traceparent", "pod-1"):
        assert words in shown.stdout
    assert '\n{\n  "run_id": "x",\n  "by": "ada"\n}\n' in shown.stdout
    [line] = lines(penstock("show", number, "--json"))
    assert (line["payload"], line["headers"]) == (payload.decode(), {"traceparent": "00-1"})


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"\xff\x00\x01", "ff00 01"),
        (b"\xff" * 1000, "… 488 bytes more"),
        (b"esc \x1b[31m", "esc [31m\n"),
        (b"x" * 30_000, "… cut: --json has it whole"),
    ],
    ids=["bytes", "many bytes", "escape", "long"],
)
def test_a_payload_that_is_no_json_is_shown_safely(
    nats: NatsServer, penstock: Invoke, payload: bytes, shown: str
) -> None:
    number = with_letter(nats, letter_about(a_cancel(), payload)).number
    assert shown in penstock("show", str(number)).stdout


def test_a_source_frame_is_shown_only_when_it_is_asked_for(
    nats: NatsServer, penstock: Invoke
) -> None:
    """Old ADK versions put client secrets into source frames."""
    letter = letter_about(f"rawp.1.{new_run_id()}.upstream", b"a secret", service="normalizer")
    number = str(with_letter(nats, letter).number)
    for arguments in (["show", number], ["show", number, "--json"], ["list", "--json"]):
        assert "a secret" not in penstock(*arguments).stdout
    assert "8 bytes of a source frame" in penstock("show", number).stdout
    assert "a secret" in penstock("show", number, "--raw").stdout
    assert lines(penstock("show", number, "--raw", "--json"))[0]["payload"] == "a secret"


def test_an_unknown_dead_letter_is_an_error(
    nats: NatsServer, penstock: Invoke, service: str
) -> None:
    with_letter(nats, letter_about(a_cancel(), service=service))  # so that there is a stream
    result = penstock("show", "99999")
    assert result.exit_code == 2
    assert "there is no dead letter 99999" in result.stderr


def test_a_replay_puts_back_once_and_the_list_shows_it(
    nats: NatsServer, penstock: Invoke, service: str
) -> None:
    found = with_letter(nats, letter_about(subject := a_cancel(service=service), service=service))
    number = str(found.number)
    first, second = penstock("replay", number), penstock("replay", number)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stdout == f"{number}: replayed, as {subject}\n"
    assert second.stdout.startswith(f"{number}: was replayed at ")
    assert on(nats, lambda bus: stored_command(bus, subject)) == 1
    [line] = lines(penstock("list", "--service", service, "--json"))
    assert line["state"] == "replayed"
    assert line["state_at"]


def test_a_replay_of_all_tells_of_each_and_fails_when_one_cannot(
    nats: NatsServer, penstock: Invoke, service: str
) -> None:
    cancel = with_letter(nats, letter_about(a_cancel(service=service), service=service))
    frame = with_letter(nats, letter_about(f"rawp.1.{new_run_id()}.x", service=service))
    result = penstock("replay", "--all", "--service", service, "--json")
    assert result.exit_code == 1
    assert [(line["number"], line["outcome"]) for line in lines(result)] == [
        (cancel.number, "replayed"),
        (frame.number, "refused"),
    ]
    run_id = cancel.letter.run_id
    again = penstock("replay", "--all", "--service", service, "--run", run_id)
    assert (again.exit_code, again.stderr) == (0, "there is nothing to replay\n")
    missing = penstock("replay", "99999")
    assert missing.exit_code == 1
    assert "99999: there is no such dead letter" in missing.stderr


def test_a_drop_needs_a_yes(nats: NatsServer, penstock: Invoke, service: str) -> None:
    number = str(with_letter(nats, letter_about(a_cancel(), service=service)).number)
    unasked = penstock("drop", number)
    assert unasked.exit_code == 2
    assert "say --yes" in unasked.stderr
    assert kept(nats, service) == 1
    done = penstock("drop", number, "--yes")
    assert (done.exit_code, done.stdout) == (0, f"{number}: dropped\n")
    assert kept(nats, service) == 0
    assert penstock("drop", number, "--yes").exit_code == 1


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 1), (None, 1)])
def test_a_person_is_asked_before_a_drop(
    nats: NatsServer,
    penstock: Invoke,
    service: str,
    monkeypatch: pytest.MonkeyPatch,
    answer: str | None,
    left: int,
) -> None:
    asked: list[str] = []

    def ask(self: Output, question: str) -> str | None:
        asked.append(question)
        return answer

    monkeypatch.setattr(Output, "is_interactive", True)
    monkeypatch.setattr(Output, "ask", ask)
    number = with_letter(nats, letter_about(a_cancel(), service=service)).number
    result = penstock("drop", str(number))
    assert asked == [f"Drop {number} for good? [y/N] "]
    assert result.exit_code == (0 if left == 0 else 1)
    assert kept(nats, service) == left


def test_the_server_of_a_running_up_is_found_by_its_folder(
    nats: NatsServer, tmp_path: Path
) -> None:
    with_letter(nats, letter_about(a_cancel()))
    write_passwords(tmp_path / "credentials")
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "x.ports").write_text(json.dumps({"nats": [nats.url]}))
    result = CliRunner().invoke(app, ["deadletters", "list", "--data", str(tmp_path)])
    assert "as the test wants" in result.stdout


def test_a_server_without_a_penstock_is_reported_and_left_as_it_is(
    fresh_nats: NatsServer,
) -> None:
    result = CliRunner().invoke(app, ["deadletters", "list", "--nats", fresh_nats.url])
    assert result.exit_code == 2
    assert "has no stream DEADLETTERS" in result.stderr

    async def streams() -> int:
        bus = await Bus.connect(BusSettings(url=fresh_nats.url), ensure=False)
        try:
            return int((await bus.api("STREAM.LIST"))["total"])
        finally:
            await bus.close()

    assert asyncio.run(streams()) == 0


def test_a_delivery_that_a_hook_triggered_has_no_run(
    nats: NatsServer, penstock: Invoke, service: str
) -> None:
    letter = letter_about("delivery.orders.hook-1", service=service).model_copy(
        update={"run_id": "hook"}
    )
    with_letter(nats, letter)
    [_, row] = penstock("list", "--service", service).stdout.splitlines()
    assert row.split()[2:5] == [service, "-", "delivery.orders.hook-1"]
    [listed] = lines(penstock("list", "--service", service, "--json"))
    assert (listed["run_id"], listed["subject"]) == (None, "delivery.orders.hook-1")
