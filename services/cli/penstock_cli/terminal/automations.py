"""List, show, apply and test the rules of automations, and replay deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock_cli.terminal import render
from penstock_cli.terminal.api import ApiError
from penstock_cli.terminal.automations_api import AutomationsApi, Repeat
from penstock_cli.terminal.output import MORE, Output
from penstock_cli.terminal.rules_file import FileRule

Record = Mapping[str, Any]

_DONE: Mapping[Repeat, str] = {"replay": "replayed", "retry-now": "retried"}
_SAID: Mapping[Repeat, str] = {"replay": "made again", "retry-now": "tried now"}

DONE, FAILED = 0, 1


def show_list(api: AutomationsApi, output: Output, limit: int) -> None:
    """Show up to `limit` rules by their ids."""
    rules, more = api.rules(limit)
    if more:
        output.notice(MORE)
    if output.as_json:
        for rule in rules:
            output.json_line(rule)
        return
    rows = [
        (rule["id"], _state(rule), _owner(rule), _trigger(rule), _action(rule)) for rule in rules
    ]
    output.table(("rule", "state", "owner", "fires on", "does"), rows)


def show(output: Output, rule: Record) -> None:
    """Show one rule, and the secrets that the service has just made for this rule."""
    if output.as_json:
        output.json_line(rule)
        return
    output.pieces(render.fields({k: v for k, v in rule.items() if k != "new_secrets"}))
    _show_secrets(output, rule)


def apply(api: AutomationsApi, output: Output, name: str, rules: Sequence[FileRule]) -> int:
    """Make or change the rules of a file, and return the exit code.

    If the service refuses one rule, the other rules are still applied. A repeat changes nothing.
    """
    code = DONE
    for rule in rules:
        try:
            before = _found(api, rule.id)
            if before is None:
                stored, what = api.make(rule.value), "made"
            else:
                stored = api.replace(rule.id, rule.value)
                is_same = stored["version"] == before["version"]
                what = "unchanged" if is_same else f"changed, version {stored['version']}"
        except ApiError as error:
            code = FAILED
            for line in _refusals(rule, error):
                output.notice(f"{name}:{line}")
            continue
        if output.as_json:
            output.json_line({"outcome": what.partition(",")[0], **stored})
        else:
            output.text(f"{rule.id}: {what}")
            _show_secrets(output, stored)
    return code


def test(output: Output, tested: Record) -> int:
    """Show the result of a test request; return the exit code."""
    if output.as_json:
        output.json_line(tested)
    else:
        status = f", status {tested['status']}" if tested["status"] is not None else ""
        output.text(f"{tested['verdict']} after {tested['seconds']} s{status}")
        output.pieces(render.fields({**tested["request"], "text": tested["text"]}))
        if tested["answer"]:
            output.pieces([("\nanswer\n", "bold")])
            output.text(render.clean(tested["answer"]))
    return DONE if tested["verdict"] == "delivered" else FAILED


def dry_run(output: Output, found: Record) -> None:
    """Show which events would have fired a rule, and why the others would not."""
    if output.as_json:
        output.json_line(found)
        return
    counts = ", ".join(f"{count} {why}" for why, count in found["counts"].items() if count)
    more = "" if found["complete"] else "; there are more events than these"
    output.text(f"{found['looked_at']} events: {counts or 'none'}{more}")
    rows = [
        (each["run_id"], each["sequence"], each["type"], each["why"], each["reason"])
        for each in found["shown"]
    ]
    if rows:
        output.table(("run", "event", "type", "result", "reason"), rows)


def deliveries(output: Output, found: Sequence[Record], more: bool) -> None:
    """Show deliveries, the newest first."""
    if more:
        output.notice(MORE)
    if output.as_json:
        for delivery in found:
            output.json_line(delivery)
        return
    columns = ("delivery", "began", "type", "status", "attempts", "last")
    output.table(columns, map(_delivery, found))


def delivery(output: Output, found: Record) -> None:
    """Show one delivery with all its attempts."""
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


def repeat_each(
    api: AutomationsApi, output: Output, what: Repeat, rule: str, ids: Sequence[str]
) -> int:
    """Replay or retry these deliveries; return the exit code."""
    code = DONE
    for id in ids:
        try:
            found = api.repeat(what, rule, id)
        except ApiError as error:
            output.notice(f"{id}: {error}")
            code = FAILED
            continue
        if output.as_json:
            output.json_line({"outcome": _DONE[what], **found})
        else:
            output.text(f"{id}: is {_SAID[what]}")
    return code


def repeat_all(
    api: AutomationsApi,
    output: Output,
    what: Repeat,
    rule: str | None,
    selection: Mapping[str, Any],
) -> None:
    """Replay or retry all selected deliveries, and show their number."""
    count = left_out = 0
    after: str | None = None
    while True:
        done = api.repeat_some(what, rule, {**selection, "after": after})
        count += done[_DONE[what]]
        left_out += done["left_out"]
        after = done["next"]
        if after is None:
            break
    if output.as_json:
        output.json_line({_DONE[what]: count, "left_out": left_out})
    else:
        rest = f"; {left_out} cannot be {_SAID[what]}" if left_out else ""
        output.text(f"{count} deliveries are {_SAID[what]}{rest}")


def endpoints(output: Output, found: Sequence[Record]) -> None:
    """Show the endpoints whose circuit breakers are not closed."""
    if output.as_json:
        for each in found:
            output.json_line(each)
        return
    if not found:
        output.notice("no endpoint is blocked by its circuit breaker")
        return
    columns = ("endpoint", "state", "failures", "next_at", "process")
    output.table(columns, [[each[name] for name in columns] for each in found])


def _found(api: AutomationsApi, rule_id: str) -> dict[str, Any] | None:
    try:
        return api.rule(rule_id)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _refusals(rule: FileRule, error: ApiError) -> list[str]:
    """Return a line for each mistake in a rule.

    The line has the place, the rule's id, the field and the reason.
    """
    if not error.errors:
        return [f"{rule.location_of('id')}: {rule.id}: {error}"]
    return [
        f"{rule.location_of(each['field'], each.get('line'), each.get('column'))}: {rule.id}: "
        f"{each['field']}: {each['message']}"
        for each in error.errors
    ]


def _show_secrets(output: Output, rule: Record) -> None:
    for part, secret in rule.get("new_secrets", {}).items():
        output.notice(f"the secret of the {part} of {rule['id']}, which is shown only now:")
        output.text(secret)


def _state(rule: Record) -> str:
    if rule["paused"]:
        return "paused"
    return "on" if rule["enabled"] else "off"


def _owner(rule: Record) -> str:
    return str(rule["owner"]["user_id"] or "(operator)")


def _trigger(rule: Record) -> str:
    if rule.get("schedule"):
        return f"{rule['schedule']['cron']} {rule['schedule']['timezone']}"
    return ", ".join(rule["subjects"]) or "hook"


def _action(rule: Record) -> str:
    webhook = rule["action"].get("webhook")
    return str(webhook["url"]) if webhook else ", ".join(rule["action"])


def _delivery(found: Record) -> tuple[object, ...]:
    last = found["last"] or {}
    text = last.get("text") or last.get("status") or ""
    about = (found["id"], found["began_at"], found["type"], found["status"])
    return (*about, found["attempts"], text)
