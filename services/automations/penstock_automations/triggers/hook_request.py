"""Checks requests to inbound webhooks: their signature or token, and their id. Pure.

A check does the same work for every rule and for none, so that neither the answer nor its time
shows whether a rule exists. A request to an unknown rule is checked against secrets and tokens that
nobody has. The signature is computed while the body arrives. So the body of a request that cannot
be accepted need not be kept.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from penstock_automations.rules.model import Hook
from penstock_automations.rules.secrets import PREFIX, new_secret, new_token

# The greatest allowed difference in seconds between a signature's time and NATS's time, as Standard
# Webhooks says.
WINDOW_S: Final = 300
ID_PREFIX: Final = "hook-"
# The hook against which requests to unknown rules are checked.
NOBODY: Final = Hook(secrets=[new_secret()])
_NOBODYS_TOKEN: Final = new_token()

# The characters of an id. Quotes and braces are not allowed. The signature covers the id, followed
# by the body. So with quotes and braces, a caller could pass off a part of the id as a part of the
# body.
_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,256}")
_TIMESTAMP: Final = re.compile(r"[0-9]{1,10}")
_MAX_SIGNATURES: Final = 10
# The number of secrets, and of tokens, with which each request is compared. The number is the same
# for each rule, so that each check takes the same time.
_COMPARED: Final = 2

Refusal = Literal["id", "timestamp", "signature", "token"]


@dataclass(frozen=True, slots=True)
class HookRequest:
    """The checked parts of a request. A header that is missing or repeated is None."""

    webhook_id: str | None = None
    timestamp: str | None = None
    signature: str | None = field(default=None, repr=False)
    idempotency_key: str | None = None
    bearer: str | None = field(default=None, repr=False)
    token_in_url: str | None = field(default=None, repr=False)

    @property
    def id(self) -> str | None:
        """The id that the caller gave the request and its repeats, if any."""
        return self.webhook_id or self.idempotency_key


class Check:
    """Checks one request against a hook. Call `add` with each piece of the body, then `refusal`."""

    def __init__(self, hook: Hook, request: HookRequest) -> None:
        self._hook = hook
        self._request = request
        self._has_id = request.id is None or _ID.fullmatch(request.id) is not None
        is_time = _TIMESTAMP.fullmatch(request.timestamp or "") is not None
        self._unix_s = int(request.timestamp or "") if is_time else None
        self._token = _token_refusal(hook, request)
        signed = f"{request.webhook_id}.{request.timestamp}.".encode()
        compared = [*hook.secrets, *NOBODY.secrets, *NOBODY.secrets][:_COMPARED]
        self._signatures = [hmac.new(_key(each), signed, hashlib.sha256) for each in compared]

    @property
    def may_succeed(self) -> bool:
        """Whether the request is accepted if its signature is correct. Else, drop its body."""
        return self._has_id and (self._token is None or not self._hook.tokens)

    def add(self, piece: bytes) -> None:
        for each in self._signatures:
            each.update(piece)

    def refusal(self, unix_s: float) -> Refusal | None:
        """Return why the request is refused at the time `unix_s`; None if it is accepted."""
        signature = self._signature_refusal(unix_s)
        if not self._has_id:
            return "id"
        return self._token if self._hook.tokens else signature

    def _signature_refusal(self, unix_s: float) -> Refusal | None:
        sent = [each.strip().encode() for each in (self._request.signature or "").split(" ")]
        signatures = [b"v1," + base64.b64encode(each.digest()) for each in self._signatures]
        matches = [
            hmac.compare_digest(signature, each)
            for signature in signatures
            for each in sent[:_MAX_SIGNATURES]
        ]
        if not any(matches) or self._request.webhook_id is None or self._unix_s is None:
            return "signature"
        # The time is checked after the signature, so that a refusal with "timestamp" means that the
        # signature was correct, but its time was not.
        return None if abs(unix_s - self._unix_s) <= WINDOW_S else "timestamp"


def trigger_id(uid: str, caller_id: str | None) -> str:
    """Return the trigger's id. Repeats with the same `caller_id` have the same id."""
    if caller_id is None:
        return ID_PREFIX + secrets.token_hex(16)
    return ID_PREFIX + hashlib.sha256(f"{uid} {caller_id}".encode()).hexdigest()[:32]


def body_of_request(data: Any, caller_id: str | None, stamp: str) -> dict[str, Any]:
    found = {
        "timestamp": stamp,
        "event": {"category": "hook", "action": "received"},
        "data": data,
    }
    return found if caller_id is None else {**found, "id": caller_id}


def _token_refusal(hook: Hook, request: HookRequest) -> Refusal | None:
    sent = request.bearer
    if sent is None and hook.token_in_url:
        sent = request.token_in_url
    compared = [*hook.tokens, _NOBODYS_TOKEN, _NOBODYS_TOKEN][:_COMPARED]
    matches = [hmac.compare_digest(_digest(sent or ""), _digest(each)) for each in compared]
    return None if sent is not None and any(matches) else "token"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(PREFIX))
