"""Implements authentication and authorization. The README of `penstock.web` has the rules."""

from __future__ import annotations

from penstock.web.auth.auth import Auth
from penstock.web.auth.config import AuthConfig
from penstock.web.auth.identity import (
    Identity,
    act_as,
    check_owner,
    check_run,
    decides_for,
    identity_of,
    over,
    require,
)
from penstock.web.auth.limits import beyond, keep_place, take_stream
from penstock.web.auth.redact import redact_logs
from penstock.web.auth.service_tokens import ServiceTokens
from penstock.web.auth.stream_tokens import StreamTokens

__all__ = [
    "Auth",
    "AuthConfig",
    "Identity",
    "ServiceTokens",
    "StreamTokens",
    "act_as",
    "beyond",
    "check_owner",
    "check_run",
    "decides_for",
    "identity_of",
    "keep_place",
    "over",
    "redact_logs",
    "require",
    "take_stream",
]
