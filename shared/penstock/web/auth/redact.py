"""Remove credentials from log lines."""

from __future__ import annotations

import logging
import re
from typing import Final

HIDDEN: Final = "[redacted]"

# Each pattern matches the text before a secret, as group 1, and the secret. A secret ends at the
# end of its quotation, of its line or, in a URL, of its parameter, so that a JSON line stays valid
# JSON.
_SECRETS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # header names as text, as a dict, as pairs of bytes
        r"""((?:proxy-)?authorization\W{1,6}?(?:b?['"])?(?:bearer|basic)\s+)[^\s"'\\,;]+""",
        r"""((?:set-)?cookie(?:['"]?\s*[:=]|['"]\s*,)\s*(?:b?['"])?)[^"'\\\r\n]+""",
        r"""(x-csrf-token(?:['"]?\s*[:=]|['"]\s*,)\s*(?:b?['"])?)[^\s"'\\,;]+""",
        r"(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}",
        r"([?&](?:token|access_token)=)[^\s&#\"'\\]+",
        r"(\b(?:__Host-)?penstock_(?:token|csrf)=)[^\s;\"'\\]+",
        r"()\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*",
        r"()\bpst_[A-Za-z0-9_-]{20,}",
    )
)


def redact(text: str) -> str:
    """Return the text without credentials."""
    for secret in _SECRETS:
        text = secret.sub(rf"\g<1>{HIDDEN}", text)
    return text


class RedactingFormatter(logging.Formatter):
    """Removes credentials from the lines of another formatter, tracebacks included."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted line without credentials."""
        return redact(self._inner.format(record))


def redact_logs(logger: logging.Logger | None = None) -> None:
    """Remove credentials from all lines of the logger's handlers; default: the root logger."""
    for handler in (logger or logging.getLogger()).handlers:
        if not isinstance(handler.formatter, RedactingFormatter):
            handler.setFormatter(RedactingFormatter(handler.formatter or logging.Formatter()))
