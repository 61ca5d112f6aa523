"""Pushes of a run, which A2A calls push notifications: each is a rule for one run. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from penstock.bus.records.webhooks import Push
from penstock_automations.rules.model import Rule

# What A2A knows of a run: its states, the agent's messages, files.
SUBJECTS: Final = (
    *(f"lifecycle.{each}" for each in ("started", "paused", "resumed")),
    *(f"lifecycle.{each}" for each in ("completed", "failed", "cancelled")),
    "llm.message_completed",
    "artifact.updated",
)
TOKEN: Final = "X-A2A-Notification-Token"


def prefix(run_id: str) -> str:
    """Return how the ids of the rules of a run's pushes begin."""
    return f"a2a-{run_id}-"


def new_rule_id(run_id: str) -> str:
    """Return an id that no rule has had. The records of deliveries are found by the rule's id: with
    the id of an earlier push, the new receiver would not be told what the earlier one was told."""
    return prefix(run_id) + secrets.token_hex(8)


def rule_of(rule_id: str, run_id: str, push: Push) -> Mapping[str, Any]:
    """Return the rule of a push as a client would write it. Its name is the push's id."""
    auth: dict[str, Any] = {}
    if push.token:
        auth["header"] = {"name": TOKEN, "value": push.token}
    if push.scheme and push.scheme.lower() == "bearer":
        auth["bearer"] = push.credentials
    elif push.scheme and push.token is None:
        value = f"{push.scheme} {push.credentials or ''}".strip()
        auth["header"] = {"name": "Authorization", "value": value}
    webhook = {"url": push.url} | ({"auth": auth} if auth else {})
    return {
        "id": rule_id,
        "name": push.id,
        "subjects": list(SUBJECTS),
        "where": f'event.run_id == "{run_id}"',
        "action": {"webhook": webhook},
        "payload": "a2a",
        "order": "run",
    }


def push_of(rule: Rule) -> Push:
    """Return the push of a rule, without its secrets."""
    webhook = rule.action.webhook
    assert webhook is not None, "the rules of pushes send webhooks"
    scheme = None
    if (auth := webhook.auth) is not None:
        header = auth.header
        if auth.bearer is not None:
            scheme = "Bearer"
        elif header is not None and header.name.lower() == "authorization":
            # A value without a scheme is a secret as a whole.
            before, space, _ = header.value.partition(" ")
            scheme = before if space else None
    return Push(id=rule.name, url=webhook.url, scheme=scheme)
