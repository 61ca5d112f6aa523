"""`penstock automations`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock_cli.commands.options import AsJson, Url, connected
from penstock_cli.terminal import automations
from penstock_cli.terminal.api import DEFAULT_URL
from penstock_cli.terminal.automations_api import AutomationsApi, Repeat
from penstock_cli.terminal.output import Output
from penstock_cli.terminal.rules_file import InvalidFile, read_rules
from penstock_cli.terminal.since import parse_since

app = typer.Typer(
    help="Manage the rules that fire on events, and their deliveries.", no_args_is_help=True
)

Rule = Annotated[str, typer.Argument(help="The rule's id, see `penstock automations list`.")]
AnyRule = Annotated[
    str | None, typer.Argument(help="The rule's id. Without it, all your rules are meant.")
]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Only what began since: 15m, 2h, 3d, or an ISO 8601 time."),
]
Until = Annotated[
    str | None, typer.Option("--until", help="Only what began before, in the same forms.")
]
Limit = Annotated[int, typer.Option(min=1, help="The largest number that is shown.")]


@app.command("list")
def list_rules(limit: Limit = 100, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List your rules. With the scope administer, list all rules."""
    with _connected(url, as_json) as (api, output):
        automations.show_list(api, output, limit)


@app.command("show")
def show(rule: Rule, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one rule, without its secrets."""
    with _connected(url, as_json) as (api, output):
        automations.show(output, api.rule(rule))


@app.command("apply")
def apply(
    file: Annotated[
        Path,
        typer.Option("--file", "-f", help="A YAML file with a list `rules`; - is the input."),
    ],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make or change the rules of a file. Other rules are not changed.

    In the file, ${NAME} stands for a variable of your environment. A repeat changes nothing.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        rules = read_rules(text, os.environ)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(str(error), param_hint="--file") from None
    except InvalidFile as error:
        typer.echo(f"{file}:{error}", err=True)
        raise typer.Exit(2) from None
    with _connected(url, as_json) as (api, output):
        raise typer.Exit(automations.apply(api, output, str(file), rules))


@app.command("delete")
def delete(rule: Rule, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a rule. Deliveries of the rule that still wait then fail."""
    with _connected(url, as_json) as (api, output):
        api.delete(rule)
        output.notice(f"{rule} is deleted")


@app.command("test")
def send_test(
    rule: Rule,
    type_: Annotated[
        str | None, typer.Option("--type", help="The type of the sample. Default: the first.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send a sample that is marked as a test to the rule's webhook, and show the answer."""
    with _connected(url, as_json) as (api, output):
        raise typer.Exit(automations.test(output, api.test(rule, type_)))


@app.command("dry-run")
def dry_run(
    rule: Rule,
    since: Annotated[
        str, typer.Option("--since", help="The first event: 15m, 2h, 3d, or an ISO 8601 time.")
    ] = "1h",
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many events are looked at.")
    ] = 1000,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show which past events would have fired a rule, and why the others would not."""
    begin = _time(since, "--since")
    with _connected(url, as_json) as (api, output):
        automations.dry_run(output, api.dry_run(rule, begin, limit))


@app.command("deliveries")
def deliveries(
    rule: AnyRule = None,
    delivery: Annotated[
        str | None, typer.Argument(help="The delivery that is shown with all its attempts.")
    ] = None,
    status: Annotated[
        str | None, typer.Option(help="waiting, delivered, or failed, which are dead letters.")
    ] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the deliveries of a rule or of all your rules, the newest first; or show one
    delivery."""
    filters = _filters(status, since, until)
    with _connected(url, as_json) as (api, output):
        if rule is not None and delivery is not None:
            automations.delivery(output, api.delivery(rule, delivery))
        else:
            automations.deliveries(output, *api.deliveries(rule, limit, filters))


@app.command("replay")
def replay(
    rule: AnyRule = None,
    delivery: Annotated[
        list[str] | None, typer.Argument(help="The ids of deliveries of the rule.")
    ] = None,
    all_of_them: Annotated[
        bool, typer.Option("--all", help="All that match, instead of ids.")
    ] = False,
    status: Annotated[str | None, typer.Option(help="failed (default) or delivered.")] = None,
    since: Since = None,
    until: Until = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make deliveries again, with the same webhook-id.

    Name the deliveries, or select them with --all.
    """
    selection = _filters(status, since, until)
    _repeat("replay", rule, delivery, selection, all_of_them=all_of_them, url=url, as_json=as_json)


@app.command("retry-now")
def retry_now(
    rule: AnyRule = None,
    delivery: Annotated[
        list[str] | None, typer.Argument(help="The ids of waiting deliveries of the rule.")
    ] = None,
    all_of_them: Annotated[
        bool, typer.Option("--all", help="All that wait, instead of ids.")
    ] = False,
    since: Since = None,
    until: Until = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make the next attempt of waiting deliveries now, past an open circuit breaker.

    Name the deliveries, or select them with --all.
    """
    selection = _filters(None, since, until)
    _repeat(
        "retry-now", rule, delivery, selection, all_of_them=all_of_them, url=url, as_json=as_json
    )


@app.command("pause")
def pause(
    rule: Rule,
    reason: Annotated[str, typer.Option(help="The reason, for people.")] = "",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Pause a rule. A paused rule matches no events, and its deliveries wait."""
    with _connected(url, as_json) as (api, output):
        automations.show(output, api.pause(rule, reason))


@app.command("resume")
def resume(rule: Rule, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """End the pause of a rule. The rule then matches events from now on."""
    with _connected(url, as_json) as (api, output):
        automations.show(output, api.resume(rule))


@app.command("rotate")
def rotate(
    rule: Rule,
    of: Annotated[str, typer.Option(help="webhook, or hook for callers of its hook.")] = "webhook",
    end: Annotated[
        bool, typer.Option("--end", help="Remove the previous secret; the new one stays.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make a new secret, and show this secret once.

    The old and the new secret are valid until --end.
    """
    with _connected(url, as_json) as (api, output):
        work = api.end_rotation if end else api.rotate
        automations.show(output, work(rule, of))


@app.command("endpoints")
def endpoints(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the receivers that get no requests at present, because several requests in a row have
    failed."""
    with _connected(url, as_json) as (api, output):
        automations.endpoints(output, api.endpoints())


@contextmanager
def _connected(url: str, as_json: bool) -> Iterator[tuple[AutomationsApi, Output]]:
    with connected(url, as_json) as (api, output):
        yield AutomationsApi(api), output


def _repeat(
    what: Repeat,
    rule: str | None,
    ids: list[str] | None,
    selection: dict[str, Any],
    *,
    all_of_them: bool,
    url: str,
    as_json: bool,
) -> None:
    if bool(ids) == all_of_them:
        raise typer.BadParameter("name deliveries by their ids, or say --all (not both)")
    if ids and selection:
        text = "options that select deliveries, such as --since, go with --all, not with ids"
        raise typer.BadParameter(text)
    with _connected(url, as_json) as (api, output):
        if rule is not None and ids:
            raise typer.Exit(automations.repeat_each(api, output, what, rule, ids))
        automations.repeat_all(api, output, what, rule, selection)


def _filters(status: str | None, since: str | None, until: str | None) -> dict[str, Any]:
    given = {
        "status": status,
        "since": _time(since, "--since") if since is not None else None,
        "until": _time(until, "--until") if until is not None else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _time(text: str, option: str) -> str:
    try:
        return parse_since(text).astimezone(UTC).isoformat()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
