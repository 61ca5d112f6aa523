"""Makes the signed HTTP request of a delivery from its rule and event. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit, urlunsplit

import orjson
from standardwebhooks.webhooks import Webhook as StandardWebhook

from penstock.dialects import a2a
from penstock.expressions import ExpressionError
from penstock_automations.actions.executor import Occurrence, RequestHead
from penstock_automations.jobs.job import CallSource, Job
from penstock_automations.rules.actions import (
    Webhook,
    WebhookAuth,
    filled_header,
    filled_json,
    one_line,
)
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import event_of

_REFERENCE = ("run_id", "sequence", "session_id", "leg", "event")


def body_of(
    type_: str,
    event: bytes,
    *,
    payload: Literal["full", "reference", "a2a"],
    max_bytes: int,
    links: Sequence[Mapping[str, Any]] = (),
    request: bytes | None = None,
) -> bytes:
    """Return the body for a canonical event.

    With "full", `data` is the event itself, byte for byte. With "reference", `data` has only the
    ids and the type of the event. If the full body would be larger than `max_bytes`, `data` is made
    as with "reference", and its field `omitted` gives the reason. With "a2a", the body is a stream
    response of A2A; that of a pause has what its `request` asks.
    """
    if payload == "a2a":
        events = [orjson.loads(each) for each in (request, event) if each is not None]
        return a2a.last_response(events, max_bytes)
    parsed: Mapping[str, Any] = orjson.loads(event)
    head = orjson.dumps({"type": type_, "timestamp": parsed["timestamp"]})[:-1]
    tail = b',"links":' + orjson.dumps(links) + b"}" if links else b"}"
    if payload == "full":
        full = head + b',"data":' + event + tail
        if len(full) <= max_bytes:
            return full
    data = {name: parsed[name] for name in _REFERENCE if name in parsed}
    if payload == "full":
        data["omitted"] = f"the event has {len(event)} bytes; at most {max_bytes} are sent"
    return head + b',"data":' + orjson.dumps(data) + tail


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a webhook. `head` is the request's head without secrets, for records.
    `further` are the secrets that are in no header: in the URL, and in one-time links."""

    url: str
    headers: dict[str, str]
    body: bytes
    head: RequestHead
    further: Sequence[str] = ()

    @property
    def secrets(self) -> list[str]:
        """The values of headers that `head` leaves out, also without a scheme such as `Bearer`, and
        the `further` ones."""
        # The author of a call may name the header of the operator's secret, with another value.
        shown = self.head.headers
        hidden = [value for name, value in self.headers.items() if shown.get(name) != value]
        parts = (value.partition(" ")[2] for value in hidden if " " in value)
        return [*hidden, *parts, *self.further]


TEST: Final = "penstock-test"  # the header that marks a test request


def request_of(
    rule: Rule,
    job: Job,
    occurrence: Occurrence,
    *,
    unix_s: float,
    max_bytes: int,
    is_test: bool = False,
    links: Sequence[Mapping[str, Any]] = (),
) -> Request:
    """Return the request for an event, a trigger or a call, signed with the time `unix_s`. Raises
    ExpressionError if a template of the rule cannot be filled."""
    webhook = rule.action.webhook
    assert webhook is not None, "the caller has chosen a rule that sends a webhook"
    has_body = webhook.method != "GET"
    own, body = _content(rule, webhook, job, occurrence, max_bytes, links)
    shown = {
        **{name.lower(): value for name, value in own.items()},
        **({"content-type": "application/json"} if has_body else {}),
        "user-agent": "Penstock",
        "webhook-id": job.webhook_id,
        "webhook-timestamp": str(int(unix_s)),
        "penstock-delivery": job.delivery_id,
        "penstock-attempt": str(job.attempt),
        "penstock-depth": str(job.depth),
    }
    if job.run_id is not None:
        shown["penstock-run-id"] = job.run_id
    if is_test:
        shown[TEST] = "1"
    if occurrence.traceparent:
        shown["traceparent"] = occurrence.traceparent
    body = body if has_body else b""
    headers = {
        **shown,
        **signed(webhook.secrets, job.webhook_id, unix_s, body),
        **_authorization(webhook.auth),
    }
    parts = urlsplit(webhook.url)
    url = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
    head = RequestHead(method=webhook.method, url=url, headers=shown, body_bytes=len(body))
    urls = [str(link["url"]) for link in links if "url" in link]
    address, *in_url = _address(webhook)
    return Request(
        address, headers, body, head, [*in_url, *(each.rpartition("/")[2] for each in urls)]
    )


def _content(
    rule: Rule,
    webhook: Webhook,
    job: Job,
    occurrence: Occurrence,
    max_bytes: int,
    links: Sequence[Mapping[str, Any]],
) -> tuple[Mapping[str, str], bytes]:
    """Return the headers of the rule or the call, and the body. Raises ExpressionError if a
    template cannot be filled."""
    if isinstance(job.source, CallSource):
        call = job.source.call
        return {name: one_line(text) for name, text in call.headers.items()}, orjson.dumps(
            call.body
        )
    own: Mapping[str, str] = {}
    event = {}
    if webhook.headers or webhook.body is not None:
        event = event_of(orjson.loads(occurrence.payload))
        own = {name: filled_header(text, event) for name, text in webhook.headers.items()}
    if webhook.body is not None:
        filled = orjson.dumps(filled_json(webhook.body, {"event": event, "links": list(links)}))
        if len(filled) > max_bytes:
            raise ExpressionError(f"the body would be larger than {max_bytes} bytes")
        return own, filled
    return own, body_of(
        job.type,
        occurrence.payload,
        payload=rule.payload,
        max_bytes=max_bytes,
        links=links,
        request=occurrence.request,
    )


def _address(webhook: Webhook) -> list[str]:
    """Return the URL, and the secrets in it."""
    query = webhook.auth.query if webhook.auth is not None else None
    if query is None:
        return [webhook.url]
    value = quote(query.value, safe="")
    joint = "&" if "?" in webhook.url else "?"
    # Some receivers write the URL back with escapes in lower case.
    lower = re.sub("%..", lambda escape: escape[0].lower(), value)
    return [f"{webhook.url}{joint}{query.name}={value}", query.value, value, lower]


def _authorization(auth: WebhookAuth | None) -> dict[str, str]:
    if auth is None:
        return {}
    headers = {auth.header.name.lower(): auth.header.value} if auth.header is not None else {}
    if auth.bearer is not None:
        headers["authorization"] = f"Bearer {auth.bearer}"
    if auth.basic is not None:
        pair = f"{auth.basic.username}:{auth.basic.password}".encode()
        headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    return headers


def signed(secrets: Sequence[str], webhook_id: str, unix_s: float, body: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks; without a secret, there is no signature.

    Each attempt gets a new timestamp and signature, because receivers refuse a timestamp that is
    five minutes old.
    """
    at = datetime.fromtimestamp(int(unix_s), UTC)
    text = body.decode()
    headers = {"webhook-id": webhook_id, "webhook-timestamp": str(int(unix_s))}
    if secrets:
        signatures = [StandardWebhook(each).sign(webhook_id, at, text) for each in secrets]
        headers["webhook-signature"] = " ".join(signatures)
    return headers
