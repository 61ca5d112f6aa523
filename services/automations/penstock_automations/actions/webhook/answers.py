"""Decides what a receiver's answer, or a missing answer, means for a delivery. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Literal

from penstock_automations.actions.executor import Verdict
from penstock_automations.rules.secrets import HIDDEN

GONE = "http_410"  # the code of an answer after which the rule is paused
KEPT_BYTES = 1024  # how many bytes of an answer's body are kept in records and dead letters
# Statuses, besides 5xx, of an endpoint that cannot work now. The circuit breaker counts these
# answers as failures.
_OVERLOADED = frozenset({408, 429})


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: the status, headers with lower-case names, and the beginning of the body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def text(self, secrets: Iterable[str] = ()) -> str:
        """Return the body as text, with each of `secrets` removed.

        Some receivers send the request's headers back, which contain secrets.
        """
        text = self.body.decode("utf-8", "replace")
        for secret in secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def shown(self, secrets: Iterable[str] = ()) -> str:
        return self.text(secrets).encode()[:KEPT_BYTES].decode("utf-8", "ignore")


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The reason why there is no answer, as a code and as a text for people."""

    code: Literal["timeout", "refused_address", "connection", "protocol"]
    text: str


def verdict(result: Answer | NoAnswer, expect: str | None, unix_s: float) -> Verdict:
    """Return the verdict on an attempt. Only a 2xx answer counts as delivered."""
    if isinstance(result, NoAnswer):
        return Verdict("failed", result.code, result.text)
    status = result.status
    if 200 <= status < 300:
        if expect is None or expect.encode() in result.body:
            return Verdict("delivered", status=status)
        text = f"the answer {status} does not contain the expected text"
        return Verdict("failed", "unexpected_answer", text, status)
    if status == HTTPStatus.GONE:
        return Verdict("gone", GONE, "the receiver answered 410: it wants no more", status)
    text = f"the receiver answered {status} {_phrase(status)}".rstrip()
    if 300 <= status < 400:
        text += "; redirects are not followed"
    after_s = retry_after_s(result.headers.get("retry-after"), unix_s)
    return Verdict("failed", f"http_{status}", text, status, after_s)


def is_up(result: Answer | NoAnswer) -> bool:
    """Return whether the result of an attempt shows that the endpoint works."""
    if isinstance(result, NoAnswer):
        return result.code == "refused_address"
    return result.status < 500 and result.status not in _OVERLOADED


def retry_after_s(value: str | None, unix_s: float) -> float | None:
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - unix_s, 0.0)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
