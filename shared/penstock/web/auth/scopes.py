"""Defines the scopes of callers. No scope includes another scope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

Permission = Literal[
    "start", "read", "raw", "decide", "automate", "workflow", "act-as", "administer"
]

SCOPES: Final = frozenset(
    {"start", "read", "raw", "decide", "automate", "workflow", "act-as", "administer"}
)
# the scopes of a token without a scope claim
DEFAULT: Final = frozenset({"start", "read", "raw", "decide"})
ANONYMOUS: Final = DEFAULT | {"automate", "workflow", "act-as"}
STREAM_TOKEN: Final = frozenset({"read"})

# The names of claims with scopes. RFC 8693 defines the claim `scope`, which is a string. Some
# issuers write a list, or use another name.
CLAIMS: Final = ("scope", "scopes", "scp")


def granted_scopes(claims: Mapping[str, Any], default: frozenset[str] = DEFAULT) -> frozenset[str]:
    """Return the scopes that the claims of a token name. Without a scope claim, return `default`.

    Unknown words are ignored, because such words may be scopes of other services.

    Raises ValueError for a scope claim that is neither a string nor a list of strings.
    """
    found = [claims[name] for name in CLAIMS if name in claims]
    if not found:
        return default
    return frozenset(word for claim in found for word in _words(claim)) & SCOPES


def _words(claim: Any) -> list[str]:
    if isinstance(claim, str):
        return claim.split()
    if isinstance(claim, list) and all(isinstance(word, str) for word in claim):
        return claim
    raise ValueError("the scope claim is neither a string nor a list of strings")
