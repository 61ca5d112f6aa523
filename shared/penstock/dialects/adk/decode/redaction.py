"""Keeps credentials out of drafts.

ADK up to 1.39 puts OAuth client secrets in clear into the frames that ask for a credential, and
a credential kept in the session's state comes with every state delta (2.13 strips both).
"""

from __future__ import annotations

import re

from penstock.dialects.base import Json

REDACTED = "[redacted]"

# Deeper than any credential is; orjson reads deeper than Python recurses.
_MAX_DEPTH = 64

# Keys as they stand in JSON. A model's text about them has its quotes escaped, so it is no match.
_MARKS = (
    b'"adk_request_credential"',
    b'"requestedAuthConfigs":{"',
    b'"authType"',
    b'"auth_type"',
    b'"authScheme"',
    b'"auth_scheme"',
)

# The fields of ADK's credential models that are secret (auth_credential.py, `repr=False`),
# without case and underscores.
_SECRET = frozenset(
    {
        "accesstoken",
        "additionalheaders",
        "apikey",
        "authcode",
        "authresponseuri",
        "clientsecret",
        "codeverifier",
        "idtoken",
        "password",
        "privatekey",
        "privatekeyid",
        "refreshtoken",
        "token",
    }
)

_ASSIGNED = re.compile(
    r"(?i)((?:client_?secret|(?:access|refresh|id)_?token|api_?key|auth_?code|auth_?response_?uri"
    r"|code_?verifier|password|private_?key)"
    r"(?:\\?[\"'])?\s*(?:=\s*(?:\\?[\"'])?|:\s*\\?[\"']))([^\"'\\\s,&})]+)"
)


def speaks_of_credentials(data: bytes) -> bool:
    """Whether a frame may hold a credential, so that it must be redacted before it is read."""
    return any(mark in data for mark in _MARKS)


def redacted(value: Json, depth: int = 0) -> Json:
    """A copy with every secret field's value replaced, at any depth."""
    if depth > _MAX_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        return {
            key: REDACTED if _is_secret(key) and inner else redacted(inner, depth + 1)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [redacted(inner, depth + 1) for inner in value]
    return value


def scrubbed(message: str) -> str:
    """An error's text without the secrets that a validation error repeats (`api_key='…'`)."""
    return _ASSIGNED.sub(rf"\1{REDACTED}", message)


def _is_secret(key: str) -> bool:
    return key.replace("_", "").lower() in _SECRET
