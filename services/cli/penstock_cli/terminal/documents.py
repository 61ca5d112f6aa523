"""Reads and shows the documents of the operator: the policy and the budgets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import typer
import yaml
from pydantic import BaseModel, ValidationError

from penstock.documents.reading import InvalidDocument
from penstock.documents.store import InForce
from penstock.validation import reason_of
from penstock_cli.terminal.output import Output

InForceT = TypeVar("InForceT", bound=InForce)
CaseT = TypeVar("CaseT", bound=BaseModel)
_DIGEST_SHOWN = 19  # the number of shown characters of a digest, including `sha256:`


class InvalidFile(Exception):
    """The error for a file that is no valid document or case. The text names the file and the line
    of each mistake."""


@contextmanager
def files() -> Iterator[None]:
    """If a file has mistakes, print them and end the command with exit code 2."""
    try:
        yield
    except InvalidFile as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def read_document(path: Path, parse: Callable[[str], InForceT]) -> tuple[InForceT, Any]:
    """Return a file's document, and its content with only the types of JSON. Raises
    InvalidFile."""
    text = _text(path)
    try:
        document = parse(text)
    except InvalidDocument as error:
        lines = [
            f"{path}:{each.line}: " + (f"{each.field}: " if each.field else "") + each.reason
            for each in error.mistakes
        ]
        raise InvalidFile("\n".join(lines)) from None
    # Dates become texts.
    return document, json.loads(json.dumps(yaml.safe_load(text), default=str))


def read_case(path: Path, model: type[CaseT]) -> CaseT:
    try:
        return model.model_validate(yaml.safe_load(_text(path)))
    except yaml.YAMLError as error:
        raise InvalidFile(f"{path}: neither JSON nor YAML: {error}") from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        lines = [f"{path}: {'.'.join(map(str, each['loc']))}: {reason_of(each)}" for each in found]
        raise InvalidFile("\n".join(lines)) from None


def no_mistake(name: str, document: InForce) -> str:
    return f"{name} {document.version} ({document.digest[:_DIGEST_SHOWN]}…): no mistake"


def show_document(output: Output, current: Mapping[str, Any], name: str) -> None:
    """Show what `GET /v1/<name>` has answered."""
    if output.as_json:
        output.json_line(current)
        return
    who = f", stored by {current['by']} at {current['at']}" if current.get("by") else ""
    output.pieces([(f"# {current['source']}, {current['digest']}{who}\n", "dim")])
    output.pieces([(yaml.safe_dump(current[name], sort_keys=False, allow_unicode=True), "")])
    for source, reason in current.get("refused", {}).items():
        output.notice(f"newer {name} ({source}) refused: {reason}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: {error}") from None
