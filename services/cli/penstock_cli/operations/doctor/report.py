"""Show the findings of `penstock doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from penstock_cli.operations.connection import DONE, FAILED
from penstock_cli.operations.doctor.checks import Finding
from penstock_cli.terminal.output import Output
from penstock_cli.terminal.render import clean


def show(output: Output, findings: Sequence[Finding]) -> int:
    """Show each finding. Return the exit code: 1 if something is wrong, else 0."""
    for each in findings:
        if output.as_json:
            output.json_line(asdict(each))
        elif each.verdict == "ok":
            output.text(f"{each.check}: ok: {each.text}")
        else:
            verdict = each.verdict.replace("_", " ")
            output.text(clean(f"{each.check}: {verdict}: {each.text}. To do: {each.to_do}"))
    return FAILED if any(each.verdict == "wrong" for each in findings) else DONE
