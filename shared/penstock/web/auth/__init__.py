"""Implements authentication and authorization. The README of `penstock.web` has the rules."""

from __future__ import annotations

from penstock.web.auth.auth import Auth
from penstock.web.auth.config import AuthConfig
from penstock.web.auth.identity import (
    Identity,
    acting_user,
    check_owner,
    check_run,
    deciding_user,
    identity_of,
    require,
    wait_until_credential_ends,
)
from penstock.web.auth.limits import count_stream, keep_counting, limit_refusal
from penstock.web.auth.service_tokens import ServiceTokens
from penstock.web.auth.stream_tokens import StreamTokens

__all__ = [
    "Auth",
    "AuthConfig",
    "Identity",
    "ServiceTokens",
    "StreamTokens",
    "acting_user",
    "check_owner",
    "check_run",
    "count_stream",
    "deciding_user",
    "identity_of",
    "keep_counting",
    "limit_refusal",
    "require",
    "wait_until_credential_ends",
]
