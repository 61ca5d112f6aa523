"""Encrypts with AES-256-GCM. A process imports this module only if it has a key: cryptography takes
memory and a part of the start."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


class Cipher:
    """Encrypts and decrypts with one key of 32 bytes. Whatever is encrypted begins with `label`."""

    __slots__ = ("_content_at", "_decrypt", "_encrypt", "_label", "_nonce_at")

    def __init__(self, secret: bytes, label: bytes = b"") -> None:
        aead = AESGCM(secret)
        self._encrypt, self._decrypt = aead.encrypt, aead.decrypt
        self._label = label
        self._nonce_at = len(label)
        self._content_at = len(label) + _NONCE_BYTES

    def encrypt(self, content: bytes, name: bytes, nonce: bytes = b"") -> bytes:
        """Return the label, a nonce, and the ciphertext of the content, which is bound to the name.
        A nonce that is passed must never be used for other content; its first 12 bytes are used."""
        nonce = nonce[:_NONCE_BYTES] or os.urandom(_NONCE_BYTES)
        return self._label + nonce + self._encrypt(nonce, content, name)

    def decrypt(self, sealed: bytes, name: bytes) -> bytes:
        """Return the content. Raises ValueError if it or its name was changed. The label is not
        looked at."""
        at = self._content_at
        try:
            return self._decrypt(sealed[self._nonce_at : at], sealed[at:], name)
        except InvalidTag:
            raise ValueError("the ciphertext or its name was changed") from None
