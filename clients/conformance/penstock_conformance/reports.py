"""Writes what was found out: for people, for CI, and as a page that can be published. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import version
from typing import Any, Final
from xml.etree import ElementTree

from penstock_conformance.exchange import Exchange
from penstock_conformance.statements import Group, Result, Verdict

TOOL: Final = "penstock-conformance"
_MAX_LOGGED: Final = 20_000  # letters of one text
_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { border-bottom: 1px solid #ccc; padding: .3rem .6rem; text-align: left }
td { vertical-align: top }
td:first-child { white-space: nowrap }
.passed { color: #176317 } .failed { color: #a40000; font-weight: bold } .not { color: #555 }
small { color: #555; overflow-wrap: anywhere }
"""


@dataclass(frozen=True, slots=True)
class Report:
    """The verdicts on one server. `at` is a time of RFC 3339, `command` is what was run."""

    server: str
    protocol: str
    at: str
    command: str
    results: Sequence[Result]

    def count(self, verdict: Verdict) -> int:
        return sum(each.verdict is verdict for each in self.results)

    @property
    def breaks(self) -> int:
        """How many MUSTs have failed."""
        return sum(each.breaks for each in self.results)

    @property
    def summary(self) -> str:
        return (
            f"{self.count(Verdict.PASSED)} passed, {self.count(Verdict.FAILED)} failed "
            f"({self.breaks} MUST), {self.count(Verdict.NOT_SHOWN)} not shown"
        )

    def by_group(self) -> Iterable[tuple[Group, list[Result]]]:
        for group in Group:
            if found := [each for each in self.results if each.statement.rule.group is group]:
                yield group, found


def tool() -> str:
    return f"{TOOL} {version(TOOL)}"


def as_text(report: Report) -> str:
    lines = [f"{tool()}: {report.protocol} at {report.server}"]
    width = max(len(each.statement.id) for each in report.results)
    for group, results in report.by_group():
        lines += ["", group.value]
        for each in results:
            verdict = each.verdict.value
            if each.verdict is Verdict.FAILED:
                verdict = verdict.upper()
            statement = each.statement
            lines.append(
                f"  {verdict:9}  {statement.level.value:6}  {statement.id:{width}}  "
                f"{statement.rule.text}"
            )
            lines += [f"{'':11}{told}" for told in each.told]
            if each.verdict is Verdict.FAILED:
                lines.append(f"{'':11}{statement.source}")
    return "\n".join([*lines, "", report.summary, ""])


def as_json(report: Report) -> str:
    return json.dumps(
        {
            "tool": tool(),
            "server": report.server,
            "protocol": report.protocol,
            "at": report.at,
            "command": report.command,
            **{each.name.lower(): report.count(each) for each in Verdict},
            "failed_must": report.breaks,
            "statements": [_described(each) for each in report.results],
        },
        indent=2,
    )


def _described(result: Result) -> Mapping[str, Any]:
    statement = result.statement
    return {
        "id": statement.id,
        "group": statement.rule.group.value,
        "level": statement.level.value,
        "text": statement.rule.text,
        "source": statement.source,
        "verdict": result.verdict.value,
        "told": list(result.told),
    }


def as_line(exchange: Exchange) -> str:
    """Return an exchange as a line of JSON, without the credentials that were sent with it."""
    request = exchange.request
    sent = request.body if request.content is None else request.content.decode(errors="replace")
    line = {
        "request": str(request),
        "user": request.user.value,
        "sent": _short(json.dumps(request.form or sent)),
        "status": exchange.status,
        "end": exchange.end.value,
        "took_s": round(exchange.took_s, 3),
        "frames": [
            [round(each.at_s, 3), each.event, each.id, _short(each.data)]
            for each in exchange.frames
        ],
    }
    if not exchange.frames:
        line["content"] = _short(exchange.content.decode(errors="replace"))
    return json.dumps(line) + "\n"


def _short(text: str) -> str:
    rest = len(text) - _MAX_LOGGED
    return text if rest <= 0 else f"{text[:_MAX_LOGGED]}… and {rest} more"


def as_junit(report: Report) -> str:
    """Return JUnit's XML: what is not shown is skipped. The type of a failure is its level."""
    suite = ElementTree.Element(
        "testsuite",
        name=f"{TOOL} {report.protocol} {report.server}",
        tests=str(len(report.results)),
        failures=str(report.count(Verdict.FAILED)),
        skipped=str(report.count(Verdict.NOT_SHOWN)),
        errors="0",
        timestamp=report.at,
    )
    for each in report.results:
        statement = each.statement
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{report.protocol}.{statement.rule.group.value.replace(' ', '_')}",
            name=f"{statement.id}: {statement.rule.text}",
        )
        told = _printable("\n".join(each.told))
        if each.verdict is Verdict.FAILED:
            failure = ElementTree.SubElement(
                case, "failure", type=statement.level.value, message=told.partition("\n")[0]
            )
            failure.text = f"{told}\n{statement.source}"
        elif each.verdict is Verdict.NOT_SHOWN:
            ElementTree.SubElement(case, "skipped", message=told)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _printable(text: str) -> str:
    """Return the text without what XML cannot have: servers send anything."""
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page. A cell is HTML, which `escape` makes of a text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]] = field(default_factory=list)


def page(title: str, lines: Iterable[str], tables: Iterable[Table]) -> str:
    """Return a page that needs no other file. `title` and `lines` are plain texts."""
    paragraphs = "".join(f"<p>{escape(line)}</p>\n" for line in lines)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n{paragraphs}"
        f"{''.join(map(_table, tables))}</html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{each}</th>" for each in table.head)
    rows = "".join(
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in table.rows
    )
    return f"<h2>{escape(table.title)}</h2>\n<table><tr>{head}</tr>\n{rows}</table>\n"


def as_html(report: Report) -> str:
    return page(
        f"{report.protocol} at {report.server}",
        (report.summary, f"{tool()}, {report.at}", report.command),
        (
            Table(group.value, ("verdict", "level", "statement"), [*map(_row, results)])
            for group, results in report.by_group()
        ),
    )


def _row(result: Result) -> tuple[str, str, str]:
    statement, verdict = result.statement, result.verdict.value
    told = "".join(f"<br><small>{escape(each)}</small>" for each in result.told)
    source = escape(statement.source)
    return (
        f'<span class="{verdict}">{verdict}</span>',
        statement.level.value,
        f'{escape(statement.rule.text)} <small><a href="{source}">{statement.id}</a></small>{told}',
    )
