"""`penstock policy`: the policy of approvals, and its rulings on cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock_approvals.policy.cases import Case
from penstock_approvals.policy.document import parse
from penstock_approvals.policy.rulings import Policy, Ruling
from penstock_cli.commands.options import AsJson, client
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.documents import (
    files,
    no_mistake,
    read_case,
    read_document,
    show_document,
)
from penstock_cli.terminal.output import Output

app = typer.Typer(help="Check, show and replace the policy of approvals.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="A YAML file with a policy.")]


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
    with files():
        policy, _ = read_document(file, parse)
        cases = {str(path): read_case(path, Case) for path in case or []}
    if not _check(Output(as_json), policy, cases):
        raise typer.Exit(1)


@app.command("show")
@client
def show(api: Api, output: Output) -> None:
    """Show the current policy, and why a newer policy was refused."""
    show_document(output, api.call("GET", "/v1/policy"), "policy")


@app.command("apply")
@client
def apply(api: Api, output: Output, file: File) -> None:
    """Replace the current policy.

    The version in the file must be higher than the current version.
    """
    with files():
        _, content = read_document(file, parse)
    show_document(output, api.call("PUT", "/v1/policy", body=content), "policy")


@app.command("try")
@client
def try_policy(
    api: Api,
    output: Output,
    file: File,
    last: Annotated[int, typer.Option(min=1, max=1000, help="How many requests.")] = 100,
) -> None:
    """Show which of the last requests a policy would have decided otherwise. Changes nothing."""
    with files():
        _, content = read_document(file, parse)
    found = api.call("POST", "/v1/policy/try", body={"policy": content, "last": last})
    if output.as_json:
        output.json_line(found)
        return
    rows = [
        (
            each["requested_at"],
            each["user_id"],
            ", ".join(each["tools"]),
            f"{_said(each['was'])} ({each['ended']})",
            _said(each["would_be"]),
        )
        for each in found["otherwise"]
    ]
    if rows:
        output.table(("requested", "for", "tool", "was", "would be"), rows)
    output.notice(f"{len(rows)} of {found['tried']} requests would be decided otherwise")
    if found["incomplete"]:
        output.notice(f"of {found['incomplete']} the run or the protocol is no longer known")


def _said(ruled: Mapping[str, Any]) -> str:
    later = "".join(f", later also ({_people([each])})" for each in ruled["escalations"])
    people = f" {ruled['need']} of ({_people(ruled['deciders'])}){later}"
    return f"{ruled['outcome']}{people if ruled['outcome'] == 'ask' else ''}, {ruled['rule']}"


def _check(output: Output, policy: Policy, cases: Mapping[str, Case]) -> bool:
    """Explain the policy's ruling on each case; return whether all rulings are as expected."""
    if not output.as_json:
        output.pieces(
            [(f"{no_mistake('policy', policy)}, rules: {len(policy.document.rules)}\n", "bold")]
        )
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
    who = _people([each.model_dump() for each in ruling.deciders])
    until = f", until {ruling.expires_at}, then {ruling.on_deadline}" if ruling.expires_at else ""
    return f"ask {ruling.need} of ({who}){until}, by rule {ruling.rule_id}"


def _people(deciders: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(
        ", ".join(
            [f"role {role}" for role in each["roles"]]
            + each["users"]
            + [f"not {name}" for name in each["excluded"]]
        )
        or f"scope {each['scope']}"
        for each in deciders
    )


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
