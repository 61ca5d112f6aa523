"""The command `penstock-conformance`."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock_conformance import agent, reports
from penstock_conformance.agents.script import RAN
from penstock_conformance.chaos import command as chaos
from penstock_conformance.dialect import Options, filled
from penstock_conformance.exchange import Exchange, User
from penstock_conformance.protocols import PROTOCOLS
from penstock_conformance.statements import Result, Statement, Verdict, judge
from penstock_conformance.trial import ACTS, Trial
from penstock_conformance.wire import NotReachable, Wire

_HELP: Final = {
    "text": "says a few words (default: Hello)",
    "calls": "calls a tool that needs no approval",
    "asks": "asks before it calls a tool",
    "fails": "fails",
    "thinks": "thinks, and then says a few words",
    "slow": "talks for 10 seconds or more",
    "long": "says the same long text each time",
    "echo": "repeats the rest of the message",
}
_COMMANDS: Final = {"agent": agent.main, "chaos": chaos.main}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 if no MUST has failed, 1 if one has, 2 if the
    command is wrong or nothing could be shown, and `STOPPED` after Ctrl-C."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if command and command[0] in _COMMANDS:
            return _COMMANDS[command[0]](command[1:])
        return _judge(command)
    except KeyboardInterrupt:  # before anything was found
        return chaos.STOPPED


def _judge(command: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parse_args(command)
    protocol = PROTOCOLS[options.protocol]
    chosen = [each for each in protocol.statements if _is_chosen(each, options.only)]
    if options.list:
        for each in chosen:
            print(f"{each.id}\t{each.level.value}\t{each.rule.text}\t{each.source}")
        return 0
    if not options.url:
        parser.error("the server's address is missing")
    if not chosen:
        parser.error("no statement has this id, rule or group: --list has them")
    try:
        with _frames(options.frames) as log:
            report, is_whole = asyncio.run(_report(options, chosen, command, log))
    except NotReachable as error:
        print(error, file=sys.stderr)
        return 2
    print(reports.as_text(report), end="")
    for path, write in (
        (options.junit, reports.as_junit),
        (options.json, reports.as_json),
        (options.html, reports.as_html),
    ):
        if path is not None:
            path.write_text(write(report), "utf-8")
    if not is_whole:
        return chaos.STOPPED
    if report.breaks:
        return 1
    return 2 if report.count(Verdict.NOT_SHOWN) == len(report.results) else 0


@contextmanager
def _frames(path: Path | None) -> Iterator[Callable[[Exchange], None]]:
    """Write each exchange when it is over, so that nothing is lost when the tool is stopped."""
    if path is None:
        yield lambda exchange: None
        return
    with path.open("w", encoding="utf-8", buffering=1) as file:
        yield lambda exchange: print(reports.as_line(exchange), end="", file=file)


async def _report(
    options: argparse.Namespace,
    statements: Sequence[Statement],
    command: Sequence[str],
    log: Callable[[Exchange], None],
) -> tuple[reports.Report, bool]:
    """Return the report, and whether all statements were tried."""
    protocol = PROTOCOLS[options.protocol]
    path = (options.path or protocol.path).replace("{agent}", options.agent)
    known = Options(options.agent, path, options.resume, options.cancel, options.user)
    results: list[Result] = []
    async with Wire(options.url, _credentials(options), options.timeout, log=log) as wire:
        ran = options.ran or (RAN if options.scripted else "")
        trial = Trial(wire, protocol.dialect(known), _messages(options), ran)
        try:
            for each in statements:
                results += await judge(trial, [each])
        except asyncio.CancelledError:  # what asyncio makes of Ctrl-C
            if not results:
                raise
    rest = statements[len(results) :]
    stopped = ("the tool was stopped before it was tried",)
    results += [Result(each, Verdict.NOT_SHOWN, stopped) for each in rest]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    line = f"{reports.TOOL} {shlex.join(_without_secrets(command))}"
    return reports.Report(options.url, options.protocol, at, line, results), not rest


def _is_chosen(statement: Statement, only: Sequence[str]) -> bool:
    names = (statement.id, statement.rule.name, statement.rule.group.value)
    return not only or any(each in names for each in only)


def _messages(options: argparse.Namespace) -> Mapping[str, str]:
    known = {name: name for name in ACTS} if options.scripted else {"text": "Hello"}
    passed = {name: getattr(options, name) for name in ACTS}
    return {**known, **{name: text for name, text in passed.items() if text is not None}}


def _credentials(options: argparse.Namespace) -> Mapping[User, Mapping[str, str]]:
    users = {User.OWNER: options.header, User.OTHER: options.other_header}
    return {user: dict(headers) for user, headers in users.items() if headers}


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:  # the text is not repeated: it may be a secret
        raise argparse.ArgumentTypeError("a header has a colon after its name")
    return name.strip(), value.strip()


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise argparse.ArgumentTypeError("an address begins with http:// or https:// and a host")
    if parts.username is not None:
        raise argparse.ArgumentTypeError("credentials belong in --header: reports have the address")
    return text


def _template(path: str) -> str:
    try:
        filled(path, defaultdict(str))
    except (LookupError, ValueError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{path} is no path with {{names}}: {error}") from None
    return path


def _without_secrets(command: Sequence[str]) -> Sequence[str]:
    """Return the command without the values of headers, for reports that are published."""
    secret = ("--header", "--other-header")
    shown: list[str] = []
    for word in command:
        option, has_value, _ = word.partition("=")
        if shown and shown[-1] in secret:
            shown.append("…")
        else:
            shown.append(f"{option}=…" if has_value and option in secret else word)
    return shown


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=reports.TOOL,
        description="Tells which statements of its protocol a server of AI agents keeps.",
        epilog=f"`{reports.TOOL} chaos` kills a server again and again, `{reports.TOOL} agent` "
        "starts a scripted agent: see their own --help. "
        "Exit status: 1 if a MUST has failed, 2 if nothing could be shown, 130 after Ctrl-C, "
        "otherwise 0.",
        allow_abbrev=False,
    )
    parser.add_argument("url", nargs="?", type=_address, help="the server's address, http://…")
    parser.add_argument("--protocol", choices=[*PROTOCOLS], required=True)
    parser.add_argument("--agent", default="", help="the agent's name at the server")
    parser.add_argument("--path", help="where the protocol is, below the server's address")
    parser.add_argument("--user", default="user", help="the user's id, where requests have it")
    parser.add_argument("--only", action="append", default=[], help="an id, a rule or a group")
    parser.add_argument("--list", action="store_true", help="list the statements")
    known = parser.add_argument_group("the agent", "messages that make it do something")
    known.add_argument(
        "--scripted", action="store_true", help=f"it is that of `{reports.TOOL} agent`"
    )
    for name, text in _HELP.items():
        known.add_argument(f"--{name}", metavar="MESSAGE", help=f"with it, the agent {text}")
    known.add_argument(
        "--ran", default="", metavar="TEXT", help="only the result of the asked tool has this text"
    )
    server = parser.add_argument_group("the server", "{run}, {session} and {a-header} are replaced")
    for name, text in (("resume", "gets a run's stream again"), ("cancel", "cancels a run (POST)")):
        server.add_argument(f"--{name}", default="", type=_template, metavar="PATH", help=text)
    for name in ("header", "other-header"):
        server.add_argument(
            f"--{name}", action="append", default=[], type=_header, metavar="NAME: VALUE"
        )
    server.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    for name in ("junit", "json", "html"):
        parser.add_argument(
            f"--{name}", type=chaos.report_file, metavar="FILE", help="write the report there"
        )
    parser.add_argument(
        "--frames",
        type=chaos.report_file,
        metavar="FILE",
        help="write each request and its answer there, as a line of JSON",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
