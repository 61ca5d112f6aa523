"""Each command and option has a help text, and a wrong usage names the remedy."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import typer
from typer import Context
from typer.main import get_command
from typer.testing import CliRunner

from penstock_cli.main import _COMMANDS, app
from support.drive.repository import ROOT


def commands() -> Iterator[tuple[str, Any]]:
    waiting: list[tuple[str, Any]] = [("penstock", get_command(app))]
    while waiting:
        path, command = waiting.pop()
        yield path, command
        if hasattr(command, "list_commands"):
            context = Context(command)
            waiting += [
                (f"{path} {name}", command.get_command(context, name))
                for name in command.list_commands(context)
            ]


COMMANDS = dict(commands())


def test_all_commands_are_found() -> None:
    assert {"penstock up", "penstock runs show", "penstock deadletters replay"} <= set(COMMANDS)


def test_the_commands_that_speak_http_import_no_nats_and_no_service() -> None:
    modules = ("runs", "approvals", "automations", "tokens", "workflow")
    commands = ", ".join(f"penstock_cli.commands.{module}" for module in modules)
    program = (
        f"import sys, penstock_cli.main, {commands}\n"
        "print([name for name in sys.modules if name in ('nats', 'penstock.bus', 'uvicorn')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_option_has_a_help_text_that_is_a_sentence(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    assert command.help.rstrip().endswith(".")
    for parameter in command.params:
        text = getattr(parameter, "help", None)
        assert text, f"{path}: {parameter.name} has no help"
        assert text.endswith((".", ")")), f"{path}: {parameter.name}: {text!r}"


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("deadletters replay", "name dead letters by their numbers, or say --all"),
        ("deadletters replay 1 --run x", "--service, --run and --since go with --all"),
        ("deadletters list --since noon", "neither like 15m, 2h or 3d nor a time"),
        ("up --nats nats://127.0.0.1:1 --nats-port 4222", "leave one out"),
        ("up --nats-sync 10", "write `always`, or a time such as 500ms"),
        ("token --lifetime long", "write it like 15m, 2h or 3d"),
        ("apprvals", "Did you mean 'approvals'"),
        ("approvals approve some-id --value city", "write the item's id, =, and the value"),
    ],
)
def test_a_wrong_usage_ends_with_exit_code_2_and_says_what_to_do(words: str, advice: str) -> None:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, words.split())
    assert result.exit_code == 2
    text = " ".join(result.output.replace("│", " ").split())
    assert advice in text


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "services/cli/README.md").read_text()
    rows = [line for line in readme.splitlines() if line.startswith("| `penstock ")]
    for name, (module, attribute) in _COMMANDS.items():
        command = getattr(import_module(f"penstock_cli.commands.{module}"), attribute)
        told = " ".join(row for row in rows if re.search(rf"`penstock {name}\b", row))
        assert told or name == "workflows", name  # workflows is another word for workflow
        if isinstance(command, typer.Typer) and told:
            words = [each.name for each in command.registered_commands]
            assert [word for word in words if not re.search(rf"\b{word}\b", told)] == [], name
