"""`penstock automations`: rules that fire on events, and their deliveries."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from penstock_cli.commands.options import Limit, Since, Until, client, parse_time
from penstock_cli.terminal import render
from penstock_cli.terminal.api import NOT_FOUND, Api
from penstock_cli.terminal.output import Output, Record
from penstock_cli.terminal.rules_file import FileRule, InvalidFile, read_rules
from penstock_client import ApiError, path_of

DONE, FAILED = 0, 1
ROOT = path_of("automations")
# What can be done to deliveries: the word of the API's answer, and the one for people.
Repeat = Literal["replay", "retry-now"]
_DONE: Mapping[Repeat, str] = {"replay": "replayed", "retry-now": "retried"}
_SAID: Mapping[Repeat, str] = {"replay": "made again", "retry-now": "tried now"}
# The ids of the rules that the server makes for push notifications of A2A.
_PUSH = re.compile(r"a2a-[0-9a-f-]{36}-[0-9a-f]{16}")

app = typer.Typer(
    help="Manage the rules that fire on events, and their deliveries.", no_args_is_help=True
)

Rule = Annotated[str, typer.Argument(help="The rule's id, see `penstock automations list`.")]
AnyRule = Annotated[
    str | None, typer.Argument(help="The rule's id. Without it, all your rules are meant.")
]
FirstEvent = Annotated[
    str,
    typer.Option(
        parser=parse_time, metavar="TIME", help="The first event: 15m, 2h, 3d, or an ISO 8601 time."
    ),
]
RulesFile = Annotated[Path, typer.Argument(help="A YAML file with a list `rules`; - is the input.")]


@app.command("list")
@client
def list_rules(api: Api, output: Output, limit: Limit = 100) -> None:
    """List your rules. With the scope administer, list all rules."""
    rules, more = api.pages(ROOT, "automations", "after", limit, {})
    columns = ("rule", "state", "owner", "fires on", "does")
    output.listing(rules, columns, _row_of_rule, more=more)


@app.command("show")
@client
def show(api: Api, output: Output, rule: Rule) -> None:
    """Show one rule, without its secrets."""
    _show(output, api.call("GET", _path(rule)))


@app.command("check")
def check(file: RulesFile) -> None:
    """Check the rules of a file without a server, and name all mistakes.

    Agents and addresses are not checked, because only the server knows them. The exit code is 0 if
    there is no mistake, and 2 otherwise.
    """
    from penstock_cli.local import rules_check  # noqa: PLC0415 - needs the service's package

    rules, wrong = _read(file)
    for rule in rules:
        found, warnings = rules_check.mistakes(rule)
        wrong += found
        for line in warnings:
            typer.echo(f"{file}:{line} (a warning)", err=True)
    _refuse(file, wrong)
    typer.echo(f"{file}: {len(rules)} rules, no mistake")


@app.command("apply")
@client
def apply(
    api: Api,
    output: Output,
    file: RulesFile,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Delete your rules that are not in the file, if it has no mistake."
        ),
    ] = False,
) -> int:
    """Make or change the rules of a file. Without --prune, other rules are not changed.

    In the file, ${NAME} stands for a variable of your environment. A repeat changes nothing.
    """
    rules, wrong = _read(file)
    _refuse(file, wrong)
    if prune and not rules:
        text = "--prune with a file without rules would delete all your rules: delete them by id"
        raise typer.BadParameter(text)
    stored = [_apply(api, output, str(file), rule) for rule in rules]
    if None in stored:
        if prune:
            output.notice("no rule is deleted, because the file has mistakes")
        return FAILED
    if prune:
        _prune(api, output, {rule.id for rule in rules})
    return DONE


def _prune(api: Api, output: Output, ids: Collection[str]) -> None:
    """Delete the caller's own rules that have none of these ids, but no push notifications of A2A:
    no file has them. An administrator sees the rules of all users, and deletes no other user's."""
    me = api.call("GET", path_of("me"))["user_id"]
    found, _ = api.pages(ROOT, "automations", "after", sys.maxsize, {})
    for rule in found:
        is_own = rule["source"] == "api" and rule["owner"]["user_id"] == me
        is_push = rule["payload"] == "a2a" and _PUSH.fullmatch(rule["id"])
        if is_own and not is_push and rule["id"] not in ids:
            waiting = api.call("DELETE", _path(rule["id"]), repeat=False)["waiting"]
            text = f"{rule['id']}: deleted, {waiting} waiting deliveries fail"
            output.result({"outcome": "deleted", **rule}, text)


def _read(file: Path) -> tuple[list[FileRule], list[str]]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        return read_rules(text, os.environ)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from None
    except InvalidFile as error:
        return [], [str(error)]


def _refuse(file: Path, wrong: list[str]) -> None:
    """Print the mistakes in the order of the file, and end the command if there are any."""
    for line in sorted(wrong, key=lambda each: int(re.split(r"\D", each, maxsplit=1)[0] or 0)):
        typer.echo(f"{file}:{line}", err=True)
    if wrong:
        raise typer.Exit(2)


@app.command("delete")
@client
def delete(api: Api, output: Output, rule: Rule) -> None:
    """Delete a rule. Its waiting deliveries fail, without dead letters."""
    waiting = api.call("DELETE", _path(rule), repeat=False)["waiting"]
    output.notice(f"{rule} is deleted: {waiting} waiting deliveries fail")


@app.command("test")
@client
def send_test(
    api: Api,
    output: Output,
    rule: Rule,
    type_: Annotated[
        str | None, typer.Option("--type", help="The type of the sample. Default: the first.")
    ] = None,
) -> int:
    """Send a sample that is marked as a test to the rule's webhook, and show the answer."""
    body = {} if type_ is None else {"type": type_}
    tested = api.call("POST", _path(rule, "test"), body=body, repeat=False)
    _show_tested(output, tested)
    return DONE if tested["verdict"] == "delivered" else FAILED


@app.command("dry-run")
@client
def dry_run(
    api: Api,
    output: Output,
    rule: Rule,
    since: FirstEvent = "1h",
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many events are looked at.")
    ] = 1000,
    file: Annotated[
        Path | None,
        typer.Option(help="A file with the rule as it is to become; nothing is stored."),
    ] = None,
) -> None:
    """Show which past events would have fired a rule, and why the others would not."""
    body = {"since": since, "limit": limit}
    if file is None:
        _show_dry_run(output, api.call("POST", _path(rule, "dry-run"), body=body))
        return
    rules, wrong = _read(file)
    _refuse(file, wrong)
    drafts = [each for each in rules if each.id == rule]
    if not drafts:
        raise typer.BadParameter(f"{file} has no rule {rule}", param_hint="RULE")
    try:
        found = api.call("POST", _path("dry-run"), body={**body, "rule": drafts[0].value})
    except ApiError as error:
        _refuse(file, _refusals(drafts[0], error))
        raise
    for line in _located(drafts[0], found.get("warnings", [])):
        output.notice(f"{file}:{line} (a warning)")
    _show_dry_run(output, found)


@app.command("backfill")
@client
def backfill(api: Api, output: Output, rule: Rule, since: FirstEvent = "1h") -> None:
    """Make the deliveries of past events, from before the rule was made or resumed.

    A repeat makes no second delivery of an event.
    """
    body: dict[str, Any] = {"since": since}
    looked_at, counts = 0, Counter[str]()
    while True:
        done = api.call("POST", _path(rule, "backfill"), body=body)
        looked_at += done["looked_at"]
        counts.update(done["counts"])
        if done["next"] is None:
            break
        body["after"] = done["next"]
    if output.as_json:
        output.json_line({"looked_at": looked_at, "counts": dict(counts)})
    else:
        output.text(_counted(looked_at, counts))


@app.command("deliveries")
@client
def deliveries(
    api: Api,
    output: Output,
    rule: AnyRule = None,
    delivery: Annotated[
        str | None, typer.Argument(help="The delivery that is shown with all its attempts.")
    ] = None,
    status: Annotated[str | None, typer.Option(help="waiting, delivered or failed.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
) -> None:
    """List the deliveries of a rule or of all your rules, the newest first; or show one
    delivery."""
    filters = _filters(status, since, until)
    if rule is not None and delivery is not None:
        _show_delivery(output, api.call("GET", _path(rule, "deliveries", delivery)))
        return
    path = _path("deliveries") if rule is None else _path(rule, "deliveries")
    found, more = api.pages(path, "deliveries", "after", limit, filters)
    columns = ("delivery", "began", "type", "status", "waits for", "attempts", "last")
    output.listing(found, columns, _row_of_delivery, more=more)


@app.command("replay")
@client
def replay(
    api: Api,
    output: Output,
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
) -> int:
    """Make deliveries again, with the same webhook-id.

    Name the deliveries, or select them with --all.
    """
    selection = _filters(status, since, until)
    return _repeat(api, output, "replay", rule, delivery, selection, all_of_them=all_of_them)


@app.command("retry-now")
@client
def retry_now(
    api: Api,
    output: Output,
    rule: AnyRule = None,
    delivery: Annotated[
        list[str] | None, typer.Argument(help="The ids of waiting deliveries of the rule.")
    ] = None,
    all_of_them: Annotated[
        bool, typer.Option("--all", help="All that wait, instead of ids.")
    ] = False,
    since: Since = None,
    until: Until = None,
) -> int:
    """Make the next attempt of waiting deliveries now, past an open circuit breaker.

    Name the deliveries, or select them with --all.
    """
    selection = _filters(None, since, until)
    return _repeat(api, output, "retry-now", rule, delivery, selection, all_of_them=all_of_them)


@app.command("pause")
@client
def pause(
    api: Api,
    output: Output,
    rule: Rule,
    reason: Annotated[str, typer.Option(help="The reason, for people.")] = "",
) -> None:
    """Pause a rule. A paused rule matches no events, and its deliveries wait."""
    _show(output, api.call("POST", _path(rule, "pause"), body={"reason": reason}))


@app.command("resume")
@client
def resume(api: Api, output: Output, rule: Rule) -> None:
    """End the pause of a rule. The rule then matches events from now on."""
    _show(output, api.call("POST", _path(rule, "resume")))


@app.command("rotate")
@client
def rotate(
    api: Api,
    output: Output,
    rule: Rule,
    of: Annotated[str, typer.Option(help="webhook, or hook for callers of its hook.")] = "webhook",
    end: Annotated[
        bool, typer.Option("--end", help="Remove the previous secret; the new one stays.")
    ] = False,
) -> None:
    """Make a new secret, and show this secret once.

    The old and the new secret are valid until --end.
    """
    if end:
        changed = api.call("DELETE", _path(rule, "secrets", "previous"), {"of": of})
    else:
        changed = api.call("POST", _path(rule, "secrets"), body={"of": of}, repeat=False)
    _show(output, changed)


@app.command("endpoints")
@client
def endpoints(api: Api, output: Output) -> None:
    """Show the receivers that get no requests at present, because several requests in a row have
    failed."""
    found = api.call("GET", f"{ROOT}/endpoints")["endpoints"]
    if not found and not output.as_json:
        output.notice("no endpoint is blocked by its circuit breaker")
        return
    columns = ("endpoint", "rule", "state", "failures", "next request", "process")
    output.listing(found, columns, _row_of_endpoint)


def _repeat(
    api: Api,
    output: Output,
    what: Repeat,
    rule: str | None,
    ids: list[str] | None,
    selection: dict[str, Any],
    *,
    all_of_them: bool,
) -> int:
    if bool(ids) == all_of_them:
        raise typer.BadParameter("name deliveries by their ids, or say --all (not both)")
    if ids and selection:
        text = "options that select deliveries, such as --since, go with --all, not with ids"
        raise typer.BadParameter(text)
    if rule is not None and ids:
        return max([_repeat_one(api, output, what, rule, each) for each in ids])
    _repeat_all(api, output, what, rule, selection)
    return DONE


def _filters(status: str | None, since: str | None, until: str | None) -> dict[str, Any]:
    filters = {"status": status, "since": since, "until": until}
    return {name: value for name, value in filters.items() if value is not None}


def _path(*segments: str) -> str:
    return path_of("automations", *segments)


def _apply(api: Api, output: Output, file: str, rule: FileRule) -> Record | None:
    """Store a rule, and say what has become of it; return None if it was refused."""
    try:
        before = _find(api, rule.id)
        if before is None:
            stored, what = api.call("POST", ROOT, body=rule.value, repeat=False), "made"
        else:
            stored = api.call("PUT", _path(rule.id), body=rule.value)
            is_same = stored["version"] == before["version"]
            what = "unchanged" if is_same else f"changed, version {stored['version']}"
    except ApiError as error:
        for line in _refusals(rule, error):
            output.notice(f"{file}:{line}")
        return None
    output.result({"outcome": what.partition(",")[0], **stored}, f"{rule.id}: {what}")
    for line in _located(rule, stored.get("warnings", [])):
        output.notice(f"{file}:{line} (a warning)")
    _show_secrets(output, stored)
    return stored


def _find(api: Api, rule_id: str) -> dict[str, Any] | None:
    try:
        return api.call("GET", _path(rule_id))
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def _refusals(rule: FileRule, error: ApiError) -> list[str]:
    """Return a line for each mistake in a rule. The line has the place, the rule's id, the field
    and the reason."""
    if not error.errors:
        return [f"{rule.location_of('id')}: {rule.id}: {error}"]
    return _located(rule, error.errors)


def _located(rule: FileRule, found: Sequence[Record]) -> list[str]:
    return [
        f"{rule.location_of(each['field'], each.get('line'), each.get('column'))}: {rule.id}: "
        f"{each['field']}: {each['message']}"
        for each in found
    ]


def _show(output: Output, rule: Record) -> None:
    output.record(rule, hidden=("new_secrets",))
    _show_secrets(output, rule)


def _show_secrets(output: Output, rule: Record) -> None:
    if output.as_json:
        return  # the record has them
    for part, secret in rule.get("new_secrets", {}).items():
        output.notice(f"the secret of the {part} of {rule['id']}, which is shown only now:")
        output.text(secret)


def _show_tested(output: Output, tested: Record) -> None:
    if output.as_json:
        output.json_line(tested)
        return
    status = f", status {tested['status']}" if tested["status"] is not None else ""
    output.text(f"{tested['verdict']} after {tested['seconds']} s{status}")
    output.pieces(render.fields({**tested["request"], "text": tested["text"]}))
    if tested["answer"]:
        output.pieces([("\nanswer\n", "bold")])
        output.text(render.clean(tested["answer"]))


def _show_dry_run(output: Output, found: Record) -> None:
    if output.as_json:
        output.json_line(found)
        return
    more = "" if found["complete"] else "; there are more events than these"
    output.text(f"{_counted(found['looked_at'], found['counts'])}{more}")
    rows = [
        (each["run_id"], each["sequence"], each["type"], each["why"], each["reason"])
        for each in found["shown"]
    ]
    if rows:
        output.table(("run", "event", "type", "result", "reason"), rows)


def _counted(looked_at: int, counts: Mapping[str, int]) -> str:
    text = ", ".join(f"{count} {result}" for result, count in counts.items() if count)
    return f"{looked_at} events: {text or 'none'}"


def _show_delivery(output: Output, found: Record) -> None:
    if output.as_json:
        output.json_line(found)
        return
    hidden = ("all_attempts", "last", "request")
    output.pieces(render.fields({k: v for k, v in found.items() if k not in hidden}))
    if found["request"]:
        output.pieces([("\nlast request\n", "bold")])
        output.pieces(render.fields(found["request"]))
    for attempt in found["all_attempts"]:
        output.pieces([("\n", ""), (f"attempt {attempt['number']}\n", "bold")])
        output.pieces(render.fields(attempt))


def _repeat_one(api: Api, output: Output, what: Repeat, rule: str, delivery: str) -> int:
    """Replay or retry a delivery; a second call within a short time has no further effect."""
    try:
        found = api.call("POST", _path(rule, "deliveries", delivery, what), repeat=False)
    except ApiError as error:
        output.notice(f"{delivery}: {error}")
        return FAILED
    output.result({"outcome": _DONE[what], **found}, f"{delivery}: is {_SAID[what]}")
    return DONE


def _repeat_all(
    api: Api, output: Output, what: Repeat, rule: str | None, selection: Record
) -> None:
    path = _path(what) if rule is None else _path(rule, what)
    count = left_out = 0
    following: dict[str, str] = {}
    while True:
        done = api.call("POST", path, body={**selection, **following}, repeat=False)
        count += done[_DONE[what]]
        left_out += done["left_out"]
        if done["next"] is None:
            break
        following = {"after": done["next"]}
    if output.as_json:
        output.json_line({_DONE[what]: count, "left_out": left_out})
    else:
        rest = f"; {left_out} cannot be {_SAID[what]}" if left_out else ""
        output.text(f"{count} deliveries are {_SAID[what]}{rest}")


def _row_of_rule(rule: Record) -> tuple[object, ...]:
    state = "paused" if rule["paused"] else "on" if rule["enabled"] else "off"
    owner = rule["owner"]["user_id"] or "(operator)"
    return rule["id"], state, owner, _trigger(rule), _action(rule)


def _trigger(rule: Record) -> str:
    if rule.get("schedule"):
        return f"{rule['schedule']['cron']} {rule['schedule']['timezone']}"
    return ", ".join(rule["subjects"]) or "hook"


def _action(rule: Record) -> str:
    webhook = rule["action"].get("webhook")
    return str(webhook["url"]) if webhook else ", ".join(rule["action"])


def _row_of_delivery(found: Record) -> tuple[object, ...]:
    last = found["last"] or {}
    text = last.get("text") or last.get("status") or ""
    about = (found["id"], found["began_at"], found["type"], found["status"])
    return (*about, _wait(found), found["attempts"], text)


def _wait(found: Record) -> str:
    if found["next_at"] is None:
        return found["waits_for"] or ""
    return f"{found['waits_for']}, until {found['next_at']}"


def _row_of_endpoint(found: Record) -> tuple[object, ...]:
    about = (found["endpoint"], found["rule"], found["state"], found["failures"])
    return (*about, found["next_at"] or "with the next delivery", found["process"])
