"""Makes a delivery's HTTP request from the delivery's rule and event. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import orjson

from penstock_automations.actions.executor import Occurrence, RequestHead
from penstock_automations.actions.webhook.payload import body_of
from penstock_automations.actions.webhook.signing import signed
from penstock_automations.jobs.job import CallSource, Job
from penstock_automations.rules.model import Rule, WebhookAuth


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a webhook. `head` is the request's head without secrets, for records."""

    url: str
    headers: dict[str, str]
    body: bytes
    head: RequestHead
    links: Sequence[str] = ()  # the addresses of one-time links, which are secrets, too

    @property
    def secrets(self) -> list[str]:
        """All secrets of the request: values of headers that `head` leaves out, and links.

        A value that begins with a scheme, such as `Bearer`, is listed with and without the scheme.
        """
        hidden = [value for name, value in self.headers.items() if name not in self.head.headers]
        parts = (value.partition(" ")[2] for value in hidden if " " in value)
        return [*hidden, *parts, *(url.rpartition("/")[2] for url in self.links)]


TEST: Final = "penstock-test"  # the header that marks a test request


def request_of(
    rule: Rule,
    job: Job,
    occurrence: Occurrence,
    unix_s: float,
    max_bytes: int,
    *,
    is_test: bool = False,
    links: Sequence[Mapping[str, Any]] = (),
) -> Request:
    """Return the request for an event, a trigger or a call, signed with the time `unix_s`."""
    webhook = rule.action.webhook
    assert webhook is not None, "the caller has chosen a rule that sends a webhook"
    own: Mapping[str, str] = {}
    if isinstance(job.source, CallSource):
        body = orjson.dumps(job.source.call.body)
        own = {name.lower(): value for name, value in job.source.call.headers.items()}
    else:
        body = body_of(job.type, occurrence.payload, rule.payload, max_bytes, links)
    shown = {
        **own,
        "content-type": "application/json",
        "user-agent": "Penstock",
        "webhook-id": job.webhook_id,
        "webhook-timestamp": str(int(unix_s)),
        "penstock-attempt": str(job.attempt),
        "penstock-depth": str(job.depth),
    }
    if job.run_id is not None:
        shown["penstock-run-id"] = job.run_id
    if is_test:
        shown[TEST] = "1"
    if occurrence.traceparent:
        shown["traceparent"] = occurrence.traceparent
    headers = {
        **shown,
        **signed(webhook.secrets, job.webhook_id, unix_s, body),
        **_authorization(webhook.auth),
    }
    parts = urlsplit(webhook.url)
    url = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
    head = RequestHead(url=url, headers=shown, body_bytes=len(body))
    urls = [str(link["url"]) for link in links if "url" in link]
    return Request(webhook.url, headers, body, head, urls)


def _authorization(auth: WebhookAuth | None) -> dict[str, str]:
    if auth is None:
        return {}
    if auth.bearer is not None:
        return {"authorization": f"Bearer {auth.bearer}"}
    if auth.basic is not None:
        pair = f"{auth.basic.username}:{auth.basic.password}".encode()
        return {"authorization": f"Basic {base64.b64encode(pair).decode()}"}
    assert auth.header is not None
    return {auth.header.name.lower(): auth.header.value}
