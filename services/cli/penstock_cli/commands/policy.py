"""`penstock policy`: the policy of approvals, and its rulings on cases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError

from penstock.validation import reason_of
from penstock_approvals.policy.cases import Case
from penstock_approvals.policy.document import InvalidPolicy, parse
from penstock_approvals.policy.rulings import Policy, Ruling
from penstock_cli.commands.options import AsJson, client
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.output import Output

app = typer.Typer(help="Check, show and replace the policy of approvals.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A YAML file with a policy.")]

_DIGEST_SHOWN = 19  # the number of shown characters of a digest, including `sha256:`


class InvalidFile(Exception):
    """The error for a file that is no valid policy or case. The text names the file and the line of
    each mistake."""


@contextmanager
def _files() -> Iterator[None]:
    """If a file has mistakes, print them and end the command with exit code 2."""
    try:
        yield
    except InvalidFile as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


@app.command("check")
def check(
    file: File,
    case: Annotated[
        list[Path] | None,
        typer.Option(help="A JSON or YAML file with a pause, and what is expected. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a policy without a server, and explain each rule for each case.

    The exit code is 0 if the policy is valid and all rulings are as expected, 1 if a ruling is not
    as expected, and 2 if a file has a mistake.
    """
    with _files():
        policy, _ = _read_policy(file)
        cases = {str(path): _read_case(path) for path in case or []}
    if not _check(Output(as_json), policy, cases):
        raise typer.Exit(1)


@app.command("show")
@client
def show(api: Api, output: Output) -> None:
    """Show the current policy, and why a newer policy was refused."""
    _show(output, api.call("GET", "/v1/policy"))


@app.command("apply")
@client
def apply(api: Api, output: Output, file: File) -> None:
    """Replace the current policy.

    The version in the file must be higher than the current version.
    """
    with _files():
        _, content = _read_policy(file)
    _show(output, api.call("PUT", "/v1/policy", body=_plain(content)))


def _read_policy(path: Path) -> tuple[Policy, Any]:
    text = _text(path)
    try:
        return parse(text), yaml.safe_load(text)
    except InvalidPolicy as error:
        lines = [
            f"{path}:{each.line}: " + (f"{each.field}: " if each.field else "") + each.reason
            for each in error.mistakes
        ]
        raise InvalidFile("\n".join(lines)) from None


def _read_case(path: Path) -> Case:
    try:
        return Case.model_validate(yaml.safe_load(_text(path)))
    except yaml.YAMLError as error:
        raise InvalidFile(f"{path}: neither JSON nor YAML: {error}") from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        lines = [f"{path}: {'.'.join(map(str, each['loc']))}: {reason_of(each)}" for each in found]
        raise InvalidFile("\n".join(lines)) from None


def _check(output: Output, policy: Policy, cases: Mapping[str, Case]) -> bool:
    """Explain the policy's ruling on each case; return whether all rulings are as expected."""
    if not output.as_json:
        digest, rules = policy.digest[:_DIGEST_SHOWN], len(policy.document.rules)
        text = f"policy {policy.version} ({digest}…): no mistake, rules: {rules}\n"
        output.pieces([(text, "bold")])
    is_as_expected = True
    for name, case in cases.items():
        ruling = policy.outcome_of(case.question())
        differences = case.differences(ruling)
        is_as_expected = is_as_expected and not differences
        if output.as_json:
            output.json_line({"case": name, **_as_json(ruling), "differences": differences})
        else:
            _explain(output, name, ruling, differences)
    return is_as_expected


def _show(output: Output, current: Mapping[str, Any]) -> None:
    if output.as_json:
        output.json_line(current)
        return
    who = f", stored by {current['by']} at {current['at']}" if current.get("by") else ""
    output.pieces([(f"# {current['source']}, {current['digest']}{who}\n", "dim")])
    output.pieces([(yaml.safe_dump(current["policy"], sort_keys=False, allow_unicode=True), "")])
    for source, reason in current.get("refused", {}).items():
        output.notice(f"a newer policy ({source}) is refused: {reason}")


def _explain(output: Output, name: str, ruling: Ruling, differences: list[str]) -> None:
    for result in ruling.results:
        output.pieces([(f"\n{name}, item {result.item_id}\n", "bold")])
        output.table(
            ("rule", "", "because"),
            [
                (
                    each.rule_id,
                    each.match.value,
                    each.reason + (" (decides)" if each.applies else ""),
                )
                for each in result.verdicts
            ]
            + [(result.rule_id, "holds", "no rule matches")][: result.rule_id == "default"],
            whole="because",
        )
    output.pieces([(f"{name}: {_summary(ruling)}\n", "bold")])
    for difference in differences:
        output.pieces([(f"{name}: {difference}\n", "red")])


def _summary(ruling: Ruling) -> str:
    if ruling.is_automatic:
        return f"{ruling.outcome}, by rule {ruling.rule_id}"
    who = " and ".join(
        ", ".join(
            [f"role {role}" for role in each.roles]
            + each.users
            + [f"not {name}" for name in each.excluded]
        )
        or f"scope {each.scope}"
        for each in ruling.deciders
    )
    until = f", until {ruling.expires_at}, then {ruling.on_deadline}" if ruling.expires_at else ""
    return f"ask {ruling.need} of ({who}){until}, by rule {ruling.rule_id}"


def _as_json(ruling: Ruling) -> dict[str, Any]:
    fields = {
        name: [each.model_dump() for each in value] if isinstance(value, list) else value
        for name, value in ruling.fields().items()
        if name != "policy"
    }
    return {
        "outcome": ruling.outcome,
        "rule": ruling.rule_id,
        "version": ruling.policy.version,
        **fields,
        "verdicts": {
            result.item_id: [
                {"rule": each.rule_id, "match": each.match.value, "why": each.reason}
                for each in result.verdicts
            ]
            for result in ruling.results
        },
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidFile(f"{path}: {error}") from None


def _plain(value: Any) -> Any:
    """Return a YAML value with only the types of JSON. Dates become texts."""
    return json.loads(json.dumps(value, default=str))
