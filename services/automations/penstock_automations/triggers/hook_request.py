"""Checks requests to inbound webhooks: their signature or token, and their id. Pure.

The time of a check does not depend on which secret matches. A request to an unknown rule is checked
against a secret that nobody has. So the time of a refusal does not show whether a rule exists.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from standardwebhooks.webhooks import Webhook

from penstock_automations.rules.secrets import new_secret
from penstock_automations.rules.triggers import Hook

# The greatest allowed difference in seconds between a signature's time and NATS's time, as Standard
# Webhooks says.
WINDOW_S: Final = 300
ID_PREFIX: Final = "hook-"
# The hook against which requests to unknown rules are checked.
NOBODY: Final = Hook(secrets=[new_secret()])

# The characters of an id. Quotes and braces are not allowed. The signature covers the id, followed
# by the body. So with quotes and braces, a caller could pass off a part of the id as a part of the
# body.
_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,256}")
_TIMESTAMP: Final = re.compile(r"[0-9]{1,10}")
_MAX_SIGNATURES: Final = 10
# The number of secrets with which each request is compared. The number is the same for a rule with
# one secret or with tokens, so that each check takes the same time.
_SECRETS: Final = 2

Refusal = Literal["id", "timestamp", "signature", "token"]


@dataclass(frozen=True, slots=True)
class HookRequest:
    """The parts of a request that are checked. A header that is missing or repeated is None."""

    body: bytes = field(repr=False)
    webhook_id: str | None = None
    timestamp: str | None = None
    signature: str | None = field(default=None, repr=False)
    idempotency_key: str | None = None
    bearer: str | None = field(default=None, repr=False)
    token_in_url: str | None = field(default=None, repr=False)

    @property
    def id(self) -> str | None:
        """The id that the caller gave the request, which is the same for each repeat; None if there
        is none."""
        return self.webhook_id or self.idempotency_key


def refusal(hook: Hook, request: HookRequest, unix_s: float) -> Refusal | None:
    """Return why the request is refused at the time `unix_s`; None if it is accepted."""
    if request.id is not None and not _ID.fullmatch(request.id):
        return "id"
    signature, token = _signature(hook, request, unix_s), _token(hook, request)
    return token if hook.tokens else signature


def trigger_id(uid: str, caller_id: str | None) -> str:
    """Return the trigger's id. Repeats with the same `caller_id` have the same id."""
    if caller_id is None:
        return ID_PREFIX + secrets.token_hex(16)
    return ID_PREFIX + hashlib.sha256(f"{uid} {caller_id}".encode()).hexdigest()[:32]


def body_of_request(data: Any, caller_id: str | None, stamp: str) -> dict[str, Any]:
    """Return the JSON of a request in the form of an event."""
    found = {
        "timestamp": stamp,
        "event": {"category": "hook", "action": "received"},
        "data": data,
    }
    return found if caller_id is None else {**found, "id": caller_id}


def _signature(hook: Hook, request: HookRequest, unix_s: float) -> Refusal | None:
    timestamp = request.timestamp or ""
    is_time = _TIMESTAMP.fullmatch(timestamp) is not None
    at = datetime.fromtimestamp(int(timestamp) if is_time else 0, UTC)
    given = [each.strip().encode() for each in (request.signature or "").split(" ")]
    try:
        text = request.body.decode()
    except UnicodeDecodeError:
        text = ""  # the body is no text: `given` is emptied, so that no signature matches
        given = []
    matches = [
        hmac.compare_digest(Webhook(secret).sign(request.webhook_id or "", at, text).encode(), each)
        for secret in [*hook.secrets, *NOBODY.secrets, *NOBODY.secrets][:_SECRETS]
        for each in given[:_MAX_SIGNATURES]
    ]
    if not any(matches) or request.webhook_id is None:
        return "signature"
    # The time is checked after the signature, so that a refusal with "timestamp" means that the
    # signature was correct, but its time was not.
    return None if is_time and abs(unix_s - at.timestamp()) <= WINDOW_S else "timestamp"


def _token(hook: Hook, request: HookRequest) -> Refusal | None:
    given = request.bearer
    if given is None and hook.token_in_url:
        given = request.token_in_url
    matches = [hmac.compare_digest(_digest(given or ""), _digest(each)) for each in hook.tokens]
    return None if given is not None and any(matches) else "token"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
