"""Makes and checks secrets of Standard Webhooks, and tokens. Pure, except for random texts."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import string
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, JsonValue

HIDDEN: Final = "(hidden)"  # the text that is shown in place of a secret
# The mark of model fields that hold secrets. The mark appears in the OpenAPI document, too.
WRITE_ONLY: Final[dict[str, JsonValue]] = {"writeOnly": True}
PREFIX: Final = "whsec_"
MIN_BYTES, MAX_BYTES = 24, 64
_MADE_CHARACTERS = 32
_TEXT: Final = re.compile(r"[\x21-\x7e]{16,512}")
_LETTERS = string.ascii_letters + string.digits


def origin_of(url: str) -> tuple[str, str]:
    """Return the scheme and the server of a URL; two empty texts for a text that is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme.lower(), parts.netloc.lower()


def new_secret() -> str:
    """Return a new secret of 190 bits. Its bytes are ASCII text, because n8n's Crypto node can hold
    a secret only as text."""
    text = "".join(secrets.choice(_LETTERS) for _ in range(_MADE_CHARACTERS))
    return PREFIX + base64.b64encode(text.encode()).decode()


def new_token() -> str:
    """Return a new token for callers of a hook that cannot sign."""
    return "pht_" + "".join(secrets.choice(_LETTERS) for _ in range(_MADE_CHARACTERS))


def check_secret(secret: str) -> str:
    """Return the secret. Raises ValueError unless it is one; the error does not contain it."""
    if not secret.startswith(PREFIX):
        raise ValueError(f"a secret begins with {PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(f"a secret is {PREFIX} and base64; this is not base64") from None
    if not MIN_BYTES <= len(key) <= MAX_BYTES:
        raise ValueError(
            f"a secret has {MIN_BYTES} to {MAX_BYTES} bytes before base64; this has {len(key)}"
        )
    return secret


def check_text(secret: str) -> str:
    """Return the secret of a caller whose secrets are plain texts. Raises ValueError unless it is
    long enough; the error does not contain it."""
    if not _TEXT.fullmatch(secret):
        raise ValueError("this secret must have 16 to 512 printable characters, without spaces")
    return secret


Secrets = list[Annotated[str, AfterValidator(check_secret)]]
