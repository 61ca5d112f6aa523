"""The checks that Slack, Teams and GitHub make of a request, as their documentation says them.

- Slack: https://docs.slack.dev/reference/methods/chat.postMessage and .../block-kit
- Teams: https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors, "Post a
  workflow when a webhook request is received", and https://adaptivecards.io/explorer
- GitHub: https://docs.github.com/rest/repos/repos#create-a-repository-dispatch-event
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

TOKEN: Final = "xoxb-1234-5678-abcdef"
SIGNATURE: Final = "Ab/c+d=e&f"  # of a URL of Teams, before it is encoded
GITHUB_TOKEN: Final = "github_pat_0123456789"
_SLACK_TEXT, _SLACK_BLOCK, _TEAMS_BYTES = 40_000, 3_000, 28 * 1024
_BLOCKS: Final = {"section", "actions", "header", "divider", "context", "image"}


@dataclass(frozen=True, slots=True)
class Called:
    """A request that an API gets."""

    method: str
    target: str  # with the query
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def json(self) -> Any:
        if not self.headers.get("content-type", "").startswith("application/json"):
            return None
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def answer_of(called: Called) -> tuple[int, str]:
    """Return status and body of the answer of the API that has this path."""
    if called.path.startswith("/api/"):
        return 200, json.dumps(_slack(called), separators=(",", ":"))
    if called.path.startswith("/workflows/"):
        return _teams(called)
    return _github(called)


def _slack(called: Called) -> dict[str, Any]:
    """Slack answers 200 also for a mistake."""
    if (error := next(_slack_errors(called), None)) is not None:
        return {"ok": False, "error": error}
    return {"ok": True, "channel": called.json["channel"], "ts": "1.2"}


def _slack_errors(called: Called) -> Iterator[str]:
    """Yield errors, of which Slack says the first."""
    if (called.method, called.path) != ("POST", "/api/chat.postMessage"):
        yield "unknown_method"
    if called.headers.get("authorization") != f"Bearer {TOKEN}":
        yield "invalid_auth"
    body = called.json
    if not isinstance(body, dict):
        yield "invalid_json"
    if not isinstance(body.get("channel"), str) or not body["channel"]:
        yield "channel_not_found"
    text, blocks = body.get("text"), body.get("blocks")
    if not text and not blocks:
        yield "no_text"
    if len(text or "") > _SLACK_TEXT:
        yield "msg_too_long"
    if not all(map(_is_block, blocks or [])):
        yield "invalid_blocks"


def _is_block(block: Any) -> bool:
    if block.get("type") not in _BLOCKS:
        return False
    texts = [block["text"]] if "text" in block else []
    for element in block.get("elements", []):
        if element.get("type") != "button" or len(element.get("url", "")) > _SLACK_BLOCK:
            return False
        texts.append(element["text"])
    return all(
        each.get("type") in ("plain_text", "mrkdwn") and 0 < len(each["text"]) <= _SLACK_BLOCK
        for each in texts
    )


def _teams(called: Called) -> tuple[int, str]:
    query = parse_qs(urlsplit(called.target).query)
    if called.method != "POST" or query.get("sig") != [SIGNATURE] or "api-version" not in query:
        return 401, '{"error":{"code":"DirectApiAuthorizationRequired"}}'
    if len(called.body) > _TEAMS_BYTES:
        return 413, ""
    body = called.json
    if not isinstance(body, dict) or body.get("type") != "message":
        return 400, '{"error":{"code":"TriggerInputSchemaMismatch"}}'
    cards = body.get("attachments")
    if not isinstance(cards, list) or not cards or not all(map(_is_card, cards)):
        return 400, '{"error":{"code":"TriggerInputSchemaMismatch"}}'
    return 202, ""


def _is_card(attachment: Any) -> bool:
    content = attachment.get("content", {})
    return (
        attachment.get("contentType") == "application/vnd.microsoft.card.adaptive"
        and content.get("type") == "AdaptiveCard"
        and isinstance(content.get("version"), str)
        and all(each["type"] == "TextBlock" and each["text"] for each in content["body"])
    )


def _github(called: Called) -> tuple[int, str]:
    return next(_github_errors(called), (204, ""))


def _github_errors(called: Called) -> Iterator[tuple[int, str]]:
    """Yield answers for mistakes, of which GitHub gives the first."""
    if not called.headers.get("user-agent"):
        yield 403, "Request forbidden by administrative rules."
    if called.headers.get("authorization") != f"Bearer {GITHUB_TOKEN}":
        yield 401, '{"message":"Bad credentials"}'
    if called.headers.get("x-github-api-version") not in (None, "2022-11-28"):
        yield 400, '{"message":"Unsupported API version"}'
    parts = called.path.split("/")
    if called.method != "POST" or parts[1] != "repos" or parts[4:] != ["dispatches"]:
        yield 404, '{"message":"Not Found"}'
    body = called.json
    if not isinstance(body, dict):
        yield 400, '{"message":"Problems parsing JSON"}'
    payload = body.get("client_payload", {})
    if not isinstance(body.get("event_type"), str) or not 0 < len(body["event_type"]) <= 100:
        yield 422, '{"message":"Invalid request. event_type"}'
    if not isinstance(payload, dict) or len(payload) > 10 or set(body) - _DISPATCH:
        yield 422, '{"message":"Invalid request. client_payload"}'


_DISPATCH: Final = {"event_type", "client_payload"}
