"""Hides the secrets of rules from clients and from who may read the bucket `rules`, and gives rules
the secrets that clients left out. Pure, except for random numbers.

The fields that hold secrets are marked as `WRITE_ONLY` in the models. In NATS, only the secrets are
encrypted, together, with AES-256-GCM. The rule's id and uid are authenticated, so the ciphertext of
one rule cannot be put into another.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson
from pydantic import BaseModel

from penstock.bus.sealing import cipher
from penstock_automations.rules.draft import Problem
from penstock_automations.rules.model import Hook, Rule
from penstock_automations.rules.records import RuleRecord
from penstock_automations.rules.secrets import HIDDEN, WRITE_ONLY, new_secret, new_token, origin_of

_SEALED: Final = "sealed"


def with_hidden_secrets(model: BaseModel) -> dict[str, Any]:
    """Return the model as JSON, with `(hidden)` in place of each secret."""
    fields: dict[str, Any] = model.model_dump(mode="json", exclude_none=True)
    for path, _ in secrets_of(model):
        set_at(fields, path, HIDDEN)
    return fields


def set_at(value: Any, path: Iterable[Any], text: str) -> None:
    """Set the text at a path of a JSON value."""
    *parents, last = path
    for step in parents:
        value = value[step]
    value[last] = text


def secrets_of(model: BaseModel, above: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, str]]:
    """Yield each secret of the model with its path of field names and list indexes."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        path = (*above, name)
        if isinstance(value, BaseModel):
            yield from secrets_of(value, path)
        elif field.json_schema_extra == WRITE_ONLY and isinstance(value, list):
            yield from ((((*path, number)), each) for number, each in enumerate(value))
        elif field.json_schema_extra == WRITE_ONLY and value is not None:
            yield path, value


def with_restored_secrets(value: Any, earlier: Rule | None) -> tuple[Any, list[Problem]]:
    """Return the JSON of a rule with the earlier rule's secrets in place of `(hidden)`.

    So a client that does not know the secrets can read a rule, change a field and send it back. If
    the URL changes to another server, hidden signing secrets are left out, so that the rule gets a
    new one.

    The problems are the secrets that the earlier rule does not have, and credentials that would be
    sent to another server than before.
    """
    before = earlier.model_dump(mode="json") if earlier is not None else {}
    value = _without_secrets_of_another_server(value, before)
    problems: list[Problem] = []
    found = _restored(value, before, (), problems)
    if earlier is not None and found != value:
        problems += _check_receiver(value, before)
    return found, problems


def made_secrets(asked: Rule, stored: Rule, earlier: Rule | None) -> dict[str, str]:
    """Return the secrets that the server has made for the parts `webhook` and `hook`."""
    known = {
        secret for rule in (asked, earlier) if rule is not None for _, secret in secrets_of(rule)
    }
    return {path[-3]: secret for path, secret in secrets_of(stored) if secret not in known}


def _restored(value: Any, before: Any, path: tuple[str, ...], problems: list[Problem]) -> Any:
    if isinstance(value, dict):
        inner = before if isinstance(before, dict) else {}
        return {
            name: _restored(each, inner.get(name), (*path, name), problems)
            for name, each in value.items()
        }
    if isinstance(value, list):
        inner = dict(enumerate(before)) if isinstance(before, list) else {}
        return [
            _restored(each, inner.get(number), (*path, str(number)), problems)
            for number, each in enumerate(value)
        ]
    if value != HIDDEN:
        return value
    if not isinstance(before, str):
        reason = f"{HIDDEN} keeps an earlier secret, and there is none: give the secret itself"
        problems.append({"field": ".".join(path), "reason": reason})
        return value
    return before


def _check_receiver(value: dict[str, Any], before: dict[str, Any]) -> list[Problem]:
    """Return a problem if the earlier credentials are kept and the URL has another server.

    Without this check, somebody who may change the rule, but may not know the credentials, could
    have the credentials sent to another server.
    """
    webhook = _webhook(value)
    if HIDDEN in str(webhook.get("auth")) and not _is_same_server(webhook, before):
        reason = "the URL has another server than before: give the credentials again"
        return [{"field": "action.webhook.auth", "reason": reason}]
    return []


def _webhook(rule: dict[str, Any]) -> dict[str, Any]:
    action = rule.get("action")
    found = action.get("webhook") if isinstance(action, dict) else None
    return found if isinstance(found, dict) else {}


def _without_secrets_of_another_server(value: Any, before: dict[str, Any]) -> Any:
    webhook = _webhook(value) if isinstance(value, dict) else {}
    secrets = webhook.get("secrets")
    if not isinstance(secrets, list) or HIDDEN not in secrets or _is_same_server(webhook, before):
        return value
    others = [each for each in secrets if each != HIDDEN]
    return {**value, "action": {**value["action"], "webhook": {**webhook, "secrets": others}}}


def _is_same_server(webhook: dict[str, Any], before: dict[str, Any]) -> bool:
    earlier = _webhook(before)
    return not earlier or origin_of(str(webhook.get("url"))) == origin_of(str(earlier.get("url")))


def with_secrets(rule: Rule, earlier: Rule | None) -> Rule:
    """Return the rule with its missing secrets added: the earlier rule's secrets, or new ones.

    A webhook to another server than before gets a new secret. With the earlier one, the new server
    could sign in the name of Penstock to the earlier server.
    """
    webhook = rule.action.webhook
    if webhook is not None and not webhook.secrets:
        before = earlier.action.webhook if earlier is not None else None
        is_same = before is not None and origin_of(before.url) == origin_of(webhook.url)
        known = before.secrets if before is not None and is_same else []
        changed = webhook.model_copy(update={"secrets": known or [new_secret()]})
        action = rule.action.model_copy(update={"webhook": changed})
        rule = rule.model_copy(update={"action": action})
    if rule.hook is not None and not (rule.hook.secrets or rule.hook.tokens):
        made = _of_hook(rule.hook, earlier.hook if earlier is not None else None)
        rule = rule.model_copy(update={"hook": rule.hook.model_copy(update=made)})
    return rule


def _of_hook(hook: Hook, earlier: Hook | None) -> dict[str, Any]:
    if earlier is not None and earlier.tokens:
        return {"tokens": earlier.tokens}
    is_same = earlier is not None and earlier.signature == hook.signature
    if earlier is not None and is_same and earlier.secrets and not hook.token_in_url:
        return {"secrets": earlier.secrets}
    return {"tokens": [new_token()]} if hook.token_in_url else {"secrets": [new_secret()]}


class CannotOpen(ValueError):
    """The secrets of a rule cannot be decrypted; the text says why."""


class RuleKeys:
    """The operator's keys: the first encrypts, all decrypt. Without keys, secrets are readable."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        keys = [hashlib.sha256(b"penstock rules " + text.encode()).digest() for text in texts]
        self._keys = {hashlib.sha256(key).hexdigest()[:8]: cipher(key) for key in keys}

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
        sealed = key.encrypt(orjson.dumps(secrets), _identity(fields))
        fields[_SEALED] = f"{key_id}.{base64.b64encode(sealed).decode()}"
        return orjson.dumps(fields)

    def parse(self, value: bytes) -> RuleRecord:
        """Return the record that `dump` wrote, also with an earlier key or without keys. Raises
        CannotOpen if no key fits, and ValidationError."""
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
            opened = key.decrypt(base64.b64decode(text, validate=True), identity)
        except ValueError:
            raise CannotOpen("its encrypted secrets were changed: write the rule again") from None
        found: list[tuple[list[Any], str]] = orjson.loads(opened)
        return found


def _identity(fields: dict[str, Any]) -> bytes:
    return f"{fields['rule']['id']}.{fields['uid']}".encode()
