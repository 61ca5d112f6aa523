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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from penstock_automations.rules.model import Hook, Signature
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
    github_delivery: str | None = None
    github_event: str | None = None
    github_signature: str | None = field(default=None, repr=False)
    stripe_signature: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Signed:
    """What a caller has signed in its own way.

    `signed` precedes the body in the signed bytes. `sent` has the signatures that came, each in the
    form that `write` gives a signature. `time` is the signed time; None if this way signs none.
    """

    id: str | None
    signed: bytes
    sent: list[bytes]
    time: str | None
    write: Callable[[bytes], bytes]


def _standard(request: HookRequest) -> _Signed:
    sent = [each.strip().encode() for each in (request.signature or "").split(" ", _MAX_SIGNATURES)]
    signed = f"{request.webhook_id}.{request.timestamp}.".encode()
    time = request.timestamp or ""
    # A signature without an id would cover another text.
    sent = sent if request.webhook_id is not None else [b""]
    id_ = request.webhook_id or request.idempotency_key
    return _Signed(id_, signed, sent, time, lambda d: b"v1," + base64.b64encode(d))


def _github(request: HookRequest) -> _Signed:
    sent = [(request.github_signature or "").encode()]
    return _Signed(request.github_delivery, b"", sent, None, lambda d: b"sha256=" + _hex(d))


def _stripe(request: HookRequest) -> _Signed:
    header = request.stripe_signature or ""
    parts = [part.strip().partition("=") for part in header.split(",", 2 * _MAX_SIGNATURES)]
    times = [value for name, _, value in parts if name == "t"]
    time = times[0] if len(times) == 1 else ""
    sent = [f"v1={value}".encode() for name, _, value in parts if name == "v1"]
    return _Signed(None, f"{time}.".encode(), sent, time, lambda d: b"v1=" + _hex(d))


_WAYS: Final[Mapping[Signature, Callable[[HookRequest], _Signed]]] = {
    "standard": _standard,
    "github": _github,
    "stripe": _stripe,
}


class Check:
    """Checks one request against a hook. Call `add` with each piece of the body, then `refusal`."""

    def __init__(self, hook: Hook, request: HookRequest) -> None:
        self._hook = hook
        # All ways are read, so that the time does not show which one the rule has.
        ways = {name: read(request) for name, read in _WAYS.items()}
        self._signed = signed = ways[hook.signature]
        self._has_id = signed.id is None or _ID.fullmatch(signed.id) is not None
        self._token = _token_refusal(hook, request)
        key = _key if hook.signature == "standard" else _text_key
        compared = [*hook.secrets, *NOBODY.secrets, *NOBODY.secrets][:_COMPARED]
        self._signatures = [hmac.new(key(each), signed.signed, hashlib.sha256) for each in compared]

    @property
    def may_succeed(self) -> bool:
        """Whether the request is accepted if its signature is correct. Else, drop its body."""
        return self._has_id and (self._token is None or not self._hook.tokens)

    def add(self, piece: bytes) -> None:
        for each in self._signatures:
            each.update(piece)

    def id_of(self, data: Any) -> str | None:
        """Return the id that the caller gave the request and its repeats, if any. `data` is the
        body: Stripe gives the id there."""
        if self._hook.signature != "stripe":
            return self._signed.id
        found = data.get("id") if isinstance(data, dict) else None
        return found if isinstance(found, str) and _ID.fullmatch(found) else None

    def refusal(self, unix_s: float) -> Refusal | None:
        """Return why the request is refused at the time `unix_s`; None if it is accepted."""
        signature = self._signature_refusal(unix_s)
        if not self._has_id:
            return "id"
        return self._token if self._hook.tokens else signature

    def _signature_refusal(self, unix_s: float) -> Refusal | None:
        time, write = self._signed.time, self._signed.write
        written = [write(signature.digest()) for signature in self._signatures]
        # Ten signatures are no more work than one. Otherwise ten in the way of one kind of rule
        # would show whether the rule is of this kind.
        sent = [*self._signed.sent, *[b""] * _MAX_SIGNATURES][:_MAX_SIGNATURES]
        matches = [hmac.compare_digest(each, other) for each in written for other in sent]
        if not any(matches) or (time is not None and not _TIMESTAMP.fullmatch(time)):
            return "signature"
        # The time is checked after the signature, so that a refusal with "timestamp" means that the
        # signature was correct, but its time was not.
        return "timestamp" if time is not None and abs(unix_s - int(time)) > WINDOW_S else None


def trigger_id(uid: str, caller_id: str | None) -> str:
    """Return the trigger's id. Repeats with the same `caller_id` have the same id."""
    if caller_id is None:
        return ID_PREFIX + secrets.token_hex(16)
    return ID_PREFIX + hashlib.sha256(f"{uid} {caller_id}".encode()).hexdigest()[:32]


def body_of_request(
    data: Any, caller_id: str | None, stamp: str, name: str | None = None
) -> dict[str, Any]:
    """Return the JSON of a request, in the form of an event. `name` is what GitHub calls it."""
    found = {
        "timestamp": stamp,
        "event": {"category": "hook", "action": "received"},
        "data": data,
    }
    further = {"id": caller_id, "name": name}
    return {**found, **{key: value for key, value in further.items() if value is not None}}


def _token_refusal(hook: Hook, request: HookRequest) -> Refusal | None:
    sent = request.bearer
    if sent is None and hook.token_in_url:
        sent = request.token_in_url
    compared = [*hook.tokens, _NOBODYS_TOKEN, _NOBODYS_TOKEN][:_COMPARED]
    matches = [hmac.compare_digest(_digest(sent or ""), _digest(each)) for each in compared]
    return None if sent is not None and any(matches) else "token"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _hex(digest: bytes) -> bytes:
    return digest.hex().encode()


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(PREFIX))


def _text_key(secret: str) -> bytes:
    _key(NOBODY.secrets[0])  # so that each check takes the same time
    return secret.encode()
