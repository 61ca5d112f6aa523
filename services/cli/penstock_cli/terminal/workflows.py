"""Show definitions of workflows and their mistakes, and store definitions."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock_cli.terminal.api import ApiError
from penstock_cli.terminal.output import MORE, Output
from penstock_cli.terminal.workflows_api import WorkflowsApi

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checked:
    """A file with a definition.

    Either `value` has the definition, or `problems` has the mistakes in the form that the service
    uses.
    """

    path: Path
    value: dict[str, Any]
    problems: Sequence[Json] = ()
    content: bytes = b""  # the document as it was read


def checked(output: Output, files: Sequence[Checked]) -> int:
    """Show the mistakes of files as file:line:column; return the exit code."""
    for each in files:
        for problem in each.problems:
            if output.as_json:
                output.json_line({"file": str(each.path), **problem})
            else:
                output.text(_line(each.path, problem))
        if not each.problems and not output.as_json:
            name, version = each.value["name"], each.value["version"]
            output.notice(f"{each.path}: {name}, version {version}, has no mistakes")
    return 1 if any(each.problems for each in files) else 0


def apply(api: WorkflowsApi, output: Output, files: Sequence[Checked]) -> int:
    """Store definitions; return the exit code.

    If the service refuses a definition, the definitions after it are not stored.
    """
    for each in files:
        name, version = each.value["name"], each.value["version"]
        try:
            stored = api.put(name, version, each.content)
        except ApiError as error:
            for problem in error.errors:  # the error's text is made of these problems
                output.notice(_line(each.path, problem))
            if not error.errors:
                output.notice(f"penstock: {each.path}: {error}")
            return error.exit_code
        if output.as_json:
            output.json_line(stored)
        else:
            latest = " and the latest" if stored.get("is_latest") else ""
            output.text(f"{name}: version {version} is stored{latest}")
    return 0


def _line(path: Path, problem: Json) -> str:
    place = "".join(f":{problem[name]}" for name in ("line", "column") if name in problem)
    return f"{path}{place}: {problem['field']}: {problem['message']}"


def show_list(output: Output, found: Sequence[Json], more: bool) -> None:
    """Show workflows, one in each line."""
    if more:
        output.notice(MORE)
    if output.as_json:
        for each in found:
            output.json_line(each)
        return
    rows = [
        (
            each["name"],
            each["version"] or "retired",
            each["topology_id"] if each["topology_id"] is not None else "",
            each["updated_at"],
            each["title"] or each["description"],
        )
        for each in found
    ]
    output.table(("workflow", "latest", "topology", "since", "title"), rows)


def show_versions(output: Output, found: Sequence[Json]) -> None:
    """Show the versions of a workflow."""
    if output.as_json:
        for each in found:
            output.json_line(each)
        return
    rows = [
        (
            each["version"],
            "latest" if each["is_latest"] else "",
            each["created_at"],
            each["created_by"],
            each["digest"][:12],
        )
        for each in found
    ]
    output.table(("version", "", "created", "by", "digest"), rows)


def show(output: Output, record: Json) -> None:
    """Show the definition of a version as YAML. With `--json`, show the version's whole record."""
    if output.as_json:
        output.json_line(record)
        return
    import yaml  # noqa: PLC0415 - the other commands start faster without it

    output.text(
        yaml.safe_dump(
            record["definition"], sort_keys=False, allow_unicode=True, width=100
        ).rstrip()
    )


def read_input(given: str | None) -> dict[str, Any] | None:
    """Return the JSON object of the option `--input`.

    Raises:
        ValueError: the file cannot be read, or the text is no JSON object.
    """
    if given is None:
        return None
    text = given
    try:
        if given == "-":
            text = sys.stdin.read()
        elif given.startswith("@"):
            text = Path(given[1:]).read_text(encoding="utf-8")
        found = json.loads(text)
    except OSError as error:
        raise ValueError(f"{given[1:]} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError('must be a JSON object, as in {"diff": "..."}')
    return found
