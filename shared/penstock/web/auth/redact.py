"""Remove credentials from log lines, and also the values that the errors of pydantic repeat."""

from __future__ import annotations

import logging
import re
from typing import Final

HIDDEN: Final = "[redacted]"

# Patterns of secrets. Group 1 of each pattern is the text before the secret, which is kept. The
# rest of the match is the secret. A match ends before a closing quote, before the end of the line,
# or in a URL before the end of the parameter. So a redacted JSON line stays valid JSON.
_SECRETS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # Each of the next three patterns matches a header that is written as text, in a dict, or as
        # a pair of bytes.
        r"""((?:proxy-)?authorization\W{1,6}?(?:b?['"])?(?:bearer|basic)\s+)[^\s"'\\,;]+""",
        r"""((?:set-)?cookie(?:['"]?\s*[:=]|['"]\s*,)\s*(?:b?['"])?)[^"'\\\r\n]+""",
        r"""(x-csrf-token(?:['"]?\s*[:=]|['"]\s*,)\s*(?:b?['"])?)[^\s"'\\,;]+""",
        r"(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}",
        r"([?&](?:token|access_token)=)[^\s&#\"'\\]+",
        r"(\b(?:__Host-)?penstock_(?:token|csrf)=)[^\s;\"'\\]+",
        r"()\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*",
        r"()\bp(?:st|sv|ln)_[A-Za-z0-9_-]{20,}",  # Tokens, and the secrets of one-time links.
        r"()\bwhsec_[A-Za-z0-9_+/=-]{16,}",  # Signing secrets of webhooks.
        r"(\binput_value=).*?(?=, input_type=)",  # Errors of pydantic repeat the refused value.
    )
)


def redact(text: str) -> str:
    for secret in _SECRETS:
        text = secret.sub(rf"\g<1>{HIDDEN}", text)
    return text


class RedactingFormatter(logging.Formatter):
    """Removes credentials from the lines and the tracebacks of another formatter."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        return redact(self._inner.format(record))


def redact_logs(logger: logging.Logger | None = None) -> None:
    """Remove credentials from all lines that the handlers of a logger write. The default is the
    root logger."""
    for handler in (logger or logging.getLogger()).handlers:
        if not isinstance(handler.formatter, RedactingFormatter):
            handler.setFormatter(RedactingFormatter(handler.formatter or logging.Formatter()))
