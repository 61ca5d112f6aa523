"""Issues and checks CSRF tokens, and seals what a browser keeps for this server.

A CSRF token is signed, bound to a credential, and sent both in a header and in a cookie.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import secrets
from typing import Final

from penstock.web.auth.config import AuthConfig

log = logging.getLogger(__name__)

HEADER: Final = b"x-csrf-token"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class Csrf:
    """Issues and checks CSRF tokens. Processes with the same secret accept the same tokens."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def of(cls, config: AuthConfig) -> Csrf:
        """Return a `Csrf` with the configured secret, or with a random one of this process."""
        if (secret := _shared_secret(config)) is not None:
            return cls(secret)
        if config.is_configured:
            log.warning(
                "CSRF tokens hold in this process only: set PENSTOCK_AUTH_CSRF_SECRET where "
                "several serve the same clients"
            )
        return cls(secrets.token_bytes(32))

    def issue(self, session: str) -> str:
        nonce = secrets.token_urlsafe(16)
        return f"{nonce}.{self._sign(session, nonce)}"

    def holds(self, session: str, header: str | None, cookie: str | None) -> bool:
        """Return whether header and cookie have the same token, which is of this session."""
        if not header or not cookie or not _equal(header, cookie):
            return False
        nonce, _, signature = header.partition(".")
        return _equal(signature, self._sign(session, nonce))

    def seal(self, content: bytes) -> str:
        """Return a text with the content, which everybody can read and nobody can change."""
        # A cookie's value has no `=`, the padding of base64.
        body = base64.urlsafe_b64encode(content).decode().rstrip("=")
        return f"{body}.{self._seal_of(body)}"

    def unseal(self, text: str) -> bytes | None:
        """Return the content of a text that `seal` has made; None for any other text."""
        body, _, seal = text.partition(".")
        if not _equal(seal, self._seal_of(body)):
            return None
        try:
            return base64.urlsafe_b64decode(f"{body}{'=' * (-len(body) % 4)}")
        except binascii.Error:
            return None

    def _seal_of(self, body: str) -> str:
        # No CSRF token has this signature: a session's name has no dot.
        return _mac(self._secret, f"penstock.sealed.{body}").hexdigest()

    def _sign(self, session: str, nonce: str) -> str:
        return _mac(self._secret, f"{session}.{nonce}").hexdigest()


def fingerprint(config: AuthConfig) -> str | None:
    """Return 24 bits that show whether two processes have the same secret; None if the process
    makes a secret of its own.

    Anybody who reaches `/readyz` can read them. They are too few to find the secret, because many
    candidates for the secret have the same 24 bits.
    """
    secret = _shared_secret(config)
    return None if secret is None else _mac(secret, "penstock csrf fingerprint").hexdigest()[:6]


def _shared_secret(config: AuthConfig) -> bytes | None:
    if config.csrf_secret is not None:
        return config.csrf_secret.encode()
    if config.jwt_secret is not None:
        # The key is derived from the secret. If the key was the secret itself, the signature of
        # a CSRF token could be valid as the signature of a JWT.
        return _mac(config.jwt_secret.encode(), "penstock csrf").digest()
    return None


def _mac(secret: bytes, text: str) -> hmac.HMAC:
    return hmac.new(secret, text.encode(), hashlib.sha256)


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
