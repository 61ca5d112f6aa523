"""Defines the refusals of authentication.

The response headers of a refusal say which credentials are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.web.problems import Problem

REALM = 'Bearer realm="penstock"'


class Refused(Problem):
    """A Problem whose response has additional headers."""

    def __init__(
        self, status: int, detail: str, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(status, detail, **more)
        self.headers: Mapping[str, str] = headers or {}


def missing_credentials() -> Refused:
    """Return 401 for a request without credentials. The response has no error code (RFC 6750
    section 3)."""
    return Refused(401, "say who you are: Authorization: Bearer", {"www-authenticate": REALM})


def invalid_token(reason: str) -> Refused:
    """Return 401 for an invalid credential. `reason` must not contain a part of the token."""
    challenge = f'{REALM}, error="invalid_token", error_description="{reason}"'
    return Refused(401, reason, {"www-authenticate": challenge})


def invalid_request(reason: str) -> Refused:
    challenge = f'{REALM}, error="invalid_request", error_description="{reason}"'
    return Refused(400, reason, {"www-authenticate": challenge})


def unavailable(reason: str) -> Refused:
    return Refused(503, reason, {"retry-after": "1"})
