"""The secrets of rules are encrypted in NATS with the operator's key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
from pydantic import ValidationError

from penstock.bus import Bus
from penstock_automations.rules.check import read_rule
from penstock_automations.rules.hidden import CannotOpen, RuleKeys
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import Owner, RuleRecord
from penstock_automations.rules.store import CurrentRules, RuleStore
from penstock_automations.settings import AutomationsSettings
from support.drive.automations import automations
from support.drive.bus import connected
from support.fakes.receiver import SECRET
from support.real.nats import NatsServer

OLD, NEW = "o" * 32, "n" * 32
OWNER = Owner(user_id="alice")
TOKEN = "pht_" + "t" * 32


def made(id: str = "sealed", **auth: Any) -> Rule:
    webhook = {
        "url": "https://hook.example/x",
        "secrets": [SECRET],
        "auth": auth or {"basic": {"username": "u", "password": "geheim"}},
    }
    fields = {"id": id, "hook": {"tokens": [TOKEN]}, "action": {"webhook": webhook}}
    return read_rule(fields, Rule)


def record(rule: Rule, uid: str = "1") -> RuleRecord:
    return RuleRecord(rule=rule, uid=uid, owner=OWNER, created_at="", updated_at="")


def is_readable(value: bytes) -> bool:
    return any(text.encode() in value for text in (SECRET, "geheim", TOKEN))


@pytest.mark.parametrize(
    "auth", [{}, {"bearer": "geheim"}, {"header": {"name": "X-Key", "value": "geheim"}}]
)
def test_every_secret_is_encrypted_and_comes_back(auth: dict[str, Any]) -> None:
    stored = record(made(**auth))
    value = RuleKeys([NEW, OLD]).dump(stored)
    assert not is_readable(value)
    assert b"https://hook.example/x" in value
    assert RuleKeys([NEW]).parse(value) == stored
    assert RuleKeys([NEW]).dump(stored) != value, "each time with another nonce"


def test_an_earlier_key_and_a_readable_record_are_read() -> None:
    stored = record(made())
    keys = RuleKeys([NEW, OLD])
    for value in (RuleKeys([OLD]).dump(stored), RuleKeys().dump(stored), stored.dump()):
        assert keys.parse(value) == stored
        assert not keys.is_current(stored, value)
    assert keys.is_current(stored, keys.dump(stored))
    assert is_readable(RuleKeys().dump(stored))


def test_without_its_key_or_changed_a_record_is_not_read_and_the_reason_names_the_key() -> None:
    value = RuleKeys([OLD]).dump(record(made()))
    for keys in (RuleKeys(), RuleKeys([NEW])):
        with pytest.raises(CannotOpen, match="PENSTOCK_RULE_KEYS does not have"):
            keys.parse(value)
    for changed in ({"uid": "2"}, {"sealed": orjson.loads(value)["sealed"][:-8] + "AAAAAAA="}):
        with pytest.raises(CannotOpen, match="were changed"):
            RuleKeys([OLD]).parse(orjson.dumps({**orjson.loads(value), **changed}))


def test_a_key_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least 32 bytes"):
        AutomationsSettings(rule_keys=("short",))
    assert OLD not in repr(AutomationsSettings(rule_keys=(OLD,)))


@pytest_asyncio.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with connected(nats_server.url) as opened:
        for each in await opened.bucket("rules").entries():
            await opened.bucket("rules").delete(each.key)
        yield opened


async def value_of(bus: Bus, rule_id: str) -> bytes:
    entry = await bus.bucket("rules").get(rule_id)
    assert entry is not None
    return entry.value


async def test_the_bucket_has_no_readable_secret_and_processes_with_the_key_have(bus: Bus) -> None:
    keys = RuleKeys([NEW])
    await RuleStore(bus, keys).apply(made(), OWNER)
    assert not is_readable(await value_of(bus, "sealed"))
    current = CurrentRules(bus, keys)
    await current.refresh()
    rule = current.get("sealed")
    assert rule is not None
    assert rule.record.rule == made()
    stranger = CurrentRules(bus)
    await stranger.refresh()
    assert stranger.get("sealed") is None


async def test_a_start_with_a_new_key_encrypts_all_rules_anew(
    bus: Bus, nats_server: NatsServer
) -> None:
    await RuleStore(bus).apply(made("readable"), OWNER)
    await RuleStore(bus, RuleKeys([OLD])).apply(made("old"), OWNER)
    keys = RuleKeys([NEW, OLD])
    await RuleStore(bus, keys).encrypt()
    for rule_id in ("readable", "old"):
        value = await value_of(bus, rule_id)
        assert not is_readable(value)
        assert RuleKeys([NEW]).parse(value).rule == made(rule_id)
    revisions = [each.revision for each in await bus.bucket("rules").entries()]
    await RuleStore(bus, keys).encrypt()
    assert [each.revision for each in await bus.bucket("rules").entries()] == revisions
    async with automations(nats_server.url, rule_keys=(NEW,)) as running:
        [service] = [each for each in running.penstock.services if each.name == "automations"]
        assert service.notices == []
