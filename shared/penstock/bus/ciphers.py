"""Encrypts with AES-256-GCM. A process imports this module only if it has a key: cryptography takes
memory and a part of the start."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


class Cipher:
    """Encrypts and decrypts with one key of 32 bytes."""

    __slots__ = ("_aead",)

    def __init__(self, secret: bytes) -> None:
        self._aead = AESGCM(secret)

    def encrypt(self, content: bytes, name: bytes, nonce: bytes = b"") -> bytes:
        """Return a nonce and the ciphertext of the content, which is bound to the name. A nonce
        that is passed must never be used for other content; its first 12 bytes are used."""
        nonce = nonce[:_NONCE_BYTES] or os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, content, name)

    def decrypt(self, sealed: bytes, name: bytes) -> bytes:
        """Return the content. Raises ValueError if it or its name was changed."""
        try:
            return self._aead.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name)
        except InvalidTag:
            raise ValueError("the ciphertext or its name was changed") from None
