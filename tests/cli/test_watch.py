"""`penstock approvals watch` asks a person at a real terminal about real approvals."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from penstock.bus.records.approvals import ApprovalRecord
from penstock.settings import Config
from penstock.visible import TooLarge, visible
from penstock_cli.terminal.watch import Watch, described, lines, parse_answer
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, pipeline
from support.drive.waiting import eventually
from support.fakes.pauses import confirmation, pause, user_input
from support.real.approving import ApprovalsProcess, approvals_process
from support.real.forked import finished
from support.real.nats import NatsServer
from support.real.up import FORKED

_STYLES = re.compile(r"\x1b\[[0-9;]*m")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Terminal:
    """A terminal in which `penstock approvals watch` runs."""

    def __init__(self, url: str) -> None:
        self._ours, theirs = pty.openpty()
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock_cli", "approvals", "watch", "--url", url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self.seen = ""

    async def until(self, text: str) -> str:
        """Wait until the text is shown; return what was shown before it since the last call."""

        async def shown() -> bool:
            with suppress(OSError):  # nothing has come
                self.seen += os.read(self._ours, 65536).decode(errors="replace")
            return text in _STYLES.sub("", self.seen)

        try:
            await eventually(shown, 30, f"{text!r} on the terminal")
        except TimeoutError as error:
            error.add_note(f"the terminal shows {self.seen!r}; exit code {self.process.poll()}")
            raise
        before, _, self.seen = _STYLES.sub("", self.seen).partition(text)
        return before

    def type(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, 20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)


ASKS = "then a note if you like: "
Watching = tuple[Pipeline, ApprovalsProcess, Terminal]


@asynccontextmanager
async def watching(nats: NatsServer) -> AsyncIterator[Watching]:
    async with (
        pipeline(nats.url, Config(), (NormalizerService,)) as penstock,
        approvals_process(nats.url) as process,
    ):
        terminal = Terminal(process.url)
        try:
            yield penstock, process, terminal
        finally:
            terminal.close()


async def decision(penstock: Pipeline, approval: ApprovalRecord) -> dict[str, Any]:
    async def decided() -> dict[str, Any] | None:
        record = await penstock.approval(approval.approval_id)
        return record.decision.model_dump() if record.decision is not None else None

    found = await eventually(decided, what="the decision")
    assert found is not None
    return found


async def test_approvals_are_asked_about_one_after_another_as_they_come(
    fresh_nats: NatsServer,
) -> None:
    async with watching(fresh_nats) as (penstock, _, terminal):
        await terminal.until("nothing waits for you")
        first = await pause(penstock, confirmation("t1", path="/x", amount=7))
        shown = await terminal.until(ASKS)
        assert first.approval_id in shown
        assert shown.index("  amount: 7\n".replace("\n", "\r\n")) < shown.index('  path: "/x"')
        terminal.type("a looks right")
        await terminal.until("approved")
        assert (await decision(penstock, first))["note"] == "looks right"
        await terminal.until("nothing waits for you")
        second = await pause(penstock)
        await terminal.until(ASKS)
        terminal.type("r")
        await terminal.until("rejected")
        made = await decision(penstock, second)
        assert (made["outcome"], made["decider"]["channel"]) == ("rejected", "cli")
        await terminal.until("nothing waits for you")
        third = await pause(penstock)
        await terminal.until(ASKS)
        terminal.type("s")
        await terminal.until("nothing waits for you")
        fourth = await pause(penstock, user_input("t2"))
        assert fourth.approval_id in await terminal.until(ASKS)
        terminal.type("a")
        await terminal.until("your answer, JSON or text")
        terminal.type('{"to": "x", "copies": 2}')
        await terminal.until("approved")
        assert (await decision(penstock, fourth))["items"][0]["value"] == {"to": "x", "copies": 2}
        await terminal.until("nothing waits for you")
        terminal.process.send_signal(signal.SIGINT)
        await terminal.until("still waits")
        assert await terminal.exit_code() == 130
        assert (await penstock.approval(third.approval_id)).status == "pending"


async def test_a_restart_of_the_service_and_anothers_decision_are_survived(
    fresh_nats: NatsServer,
) -> None:
    async with pipeline(fresh_nats.url, Config(), (NormalizerService,)) as penstock:
        async with approvals_process(fresh_nats.url) as process:
            terminal = Terminal(process.url)
            await terminal.until("nothing waits for you")
            port = int(process.url.rpartition(":")[2])
        try:
            await terminal.until("trying again")
            async with approvals_process(fresh_nats.url, port=port):
                approval = await pause(penstock)
                await terminal.until(ASKS)
                await penstock.decide(approval.approval_id, "reject")
                terminal.type("a")
                await terminal.until("it was decided already")
                await terminal.until("nothing waits for you")
                last = await pause(penstock)
                await terminal.until(ASKS)
                terminal.type("q")
                assert await terminal.exit_code() == 0
                assert (await penstock.approval(last.approval_id)).status == "pending"
        finally:
            terminal.close()


@dataclass
class Typed:
    """A terminal at which a person types these answers."""

    answers: list[str]
    notices: list[str] = field(default_factory=list)

    def ask(self, question: str) -> str:
        assert "delete_file" in question
        return self.answers.pop(0)

    def notice(self, text: str) -> None:
        self.notices.append(text)


@pytest.mark.parametrize(
    ("decision", "answers", "is_meant"),
    [
        ("approve", ["delete_file"], True),
        ("approve", ["y"], False),
        ("reject", [], True),
    ],
)
def test_a_dangerous_call_is_approved_after_its_name_was_typed(
    decision: str, answers: list[str], is_meant: bool
) -> None:
    approval = {
        "items": [{"item_id": "1", "tool": "delete_file", "kind": "confirmation"}],
        "rulings": [{"item_id": "1", "danger": True}],
    }
    output = Typed(answers)
    watch = Watch(cast(Any, None), cast(Any, output))
    assert watch._is_meant(approval, [{"item_id": "1", "decision": decision}]) is is_meant
    assert output.answers == []
    assert bool(output.notices) is not is_meant


def test_without_a_terminal_there_is_a_clear_error() -> None:
    done = finished([*FORKED, "approvals", "watch"], {})  # its stdin is /dev/null
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs a terminal" in done.stderr


def test_arguments_are_a_sorted_tree_in_which_nothing_is_hidden() -> None:
    args = {
        "to": "eve\u202etxt.exe",
        "b": [1, {"z": True, "a": None}],
        "amount\u200b": 1.5,
        "text": "one\ntwo\x1b[2J\u00a0x",
        "empty": {},
    }
    assert lines(args) == [
        "amount\\u{200b}: 1.5",
        "b:",
        "  [0]: 1",
        "  [1]:",
        "    a: null",
        "    z: true",
        "empty: {}",
        'text: "one\\u{a}two\\u{1b}[2J\\u{a0}x"',
        'to: "eve\\u{202e}txt.exe"',
    ]
    assert visible("Grüße, 世界") == "Grüße, 世界"


@pytest.mark.parametrize(
    "args", [{"text": "x" * 200_000}, {"many": list(range(100_000))}], ids=["long", "many"]
)
def test_arguments_that_are_too_large_to_be_shown_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(TooLarge):
        lines(args)


def test_the_terms_of_an_approval_are_shown() -> None:
    approval = {
        "approval_id": "a",
        "agent": "bank",
        "user_id": "ann\u202e",
        "session_id": "s",
        "run_id": "r",
        "policy": {"rule_id": "pay", "version": 7},
        "need": 2,
        "votes": [{"by": "bob"}, {"by": "eve", "void": True}],
        "expires_at": (NOW + timedelta(minutes=90)).isoformat(),
        "items": [],
    }
    text = "".join(piece for piece, _ in described(approval, NOW))
    assert "asked by  ann\\u{202e}, session s, run r\n" in text
    assert "rule      pay, version 7\n" in text
    assert "approved  1 of 2 (bob)\n" in text
    assert "2 h left" in text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a", ("a", None)),
        ("Reject, too risky", ("r", "too risky")),
        ("", (None, None)),
        ("maybe", (None, None)),
        ("q", ("q", None)),
    ],
)
def test_an_answer_is_a_letter_and_a_note(text: str, answer: tuple[Any, Any]) -> None:
    assert parse_answer(text) == answer
