"""Encrypts the secrets of rules with a key of the operator, and decrypts them. Pure, except for
random numbers.

Who may read the bucket `rules`, or a backup of it, then reads no secret. Only the secrets are
encrypted, together, with AES-256-GCM. The rule's id and uid are authenticated, so the ciphertext of
one rule cannot be put into another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Iterable
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock_automations.rules.hidden import secrets_of, set_at
from penstock_automations.rules.records import RuleRecord
from penstock_automations.rules.secrets import HIDDEN

_SEALED: Final = "sealed"
_NONCE_BYTES: Final = 12


class CannotOpen(ValueError):
    """The secrets of a rule cannot be decrypted; the text says why."""


class RuleKeys:
    """The operator's keys: the first encrypts, all decrypt. Without keys, secrets are readable."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        keys = [hashlib.sha256(b"penstock rules " + text.encode()).digest() for text in texts]
        self._keys = {hashlib.sha256(key).hexdigest()[:8]: AESGCM(key) for key in keys}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def dump(self, record: RuleRecord) -> bytes:
        secrets = list(secrets_of(record.rule))
        if not self._keys or not secrets:
            return record.dump()
        fields = orjson.loads(record.dump())
        for path, _ in secrets:
            set_at(fields["rule"], path, HIDDEN)
        key_id, key = next(iter(self._keys.items()))
        nonce = os.urandom(_NONCE_BYTES)
        sealed = key.encrypt(nonce, orjson.dumps(secrets), _identity(fields))
        fields[_SEALED] = f"{key_id}.{base64.b64encode(nonce + sealed).decode()}"
        return orjson.dumps(fields)

    def parse(self, value: bytes) -> RuleRecord:
        """Return the record that `dump` wrote, also with an earlier key or without keys.

        Raises CannotOpen if no key fits, and ValidationError.
        """
        if b'"sealed"' not in value:
            return RuleRecord.model_validate_json(value)
        fields = orjson.loads(value)
        if (sealed := fields.pop(_SEALED, None)) is not None:
            for path, secret in self._open(sealed, _identity(fields)):
                set_at(fields["rule"], path, secret)
        return RuleRecord.model_validate_json(orjson.dumps(fields))

    def is_current(self, record: RuleRecord, value: bytes) -> bool:
        """Return whether the value has the secrets as the first key, or no key, encrypts them."""
        if not self._keys or next(secrets_of(record.rule), None) is None:
            return True
        sealed = str(orjson.loads(value).get(_SEALED, ""))
        return sealed.startswith(f"{next(iter(self._keys))}.")

    def _open(self, sealed: Any, identity: bytes) -> list[tuple[list[Any], str]]:
        key_id, _, text = str(sealed).partition(".")
        if (key := self._keys.get(key_id)) is None:
            raise CannotOpen(
                f"its secrets are encrypted with the key {key_id:.8}, which PENSTOCK_RULE_KEYS "
                "does not have: add the key"
            )
        try:
            data = base64.b64decode(text, validate=True)
            opened = key.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], identity)
        except (InvalidTag, binascii.Error, ValueError):
            raise CannotOpen("its encrypted secrets were changed: write the rule again") from None
        found: list[tuple[list[Any], str]] = orjson.loads(opened)
        return found


def _identity(fields: dict[str, Any]) -> bytes:
    return f"{fields['rule']['id']}.{fields['uid']}".encode()
