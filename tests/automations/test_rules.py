"""Rules are stored by compare-and-set, read from a file, and followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from penstock.bus import Bus
from penstock.settings import Config, ConfigurationError
from penstock.web.auth.grants import DEFAULT
from penstock_automations.matching.consumers import Consumers
from penstock_automations.rules import store as store_module
from penstock_automations.rules.file import apply_file, owner_of, read_rules
from penstock_automations.rules.hidden import RuleKeys
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule, Owner, RuleRecord
from penstock_automations.rules.secrets import check_secret
from penstock_automations.rules.store import (
    CurrentRules,
    RuleStore,
    VersionConflict,
    pause_rules_without_owner,
)
from support.drive.automations import rule, user
from support.drive.bus import connected, event, new_run_id
from support.drive.waiting import eventually
from support.fakes.receiver import SECRET
from support.real.nats import NatsServer

URL = "https://hook.example/x"
FILE = """
rules:
  - id: first
    subjects: [lifecycle.completed]
    action: {{webhook: {{url: "{url}", secrets: ["${{HOOK_SECRET}}"]}}}}
  - id: second
    subjects: [llm.*]
    where: 'event.data.tool == "x"'
    action: {{webhook: {{url: "{url}"}}}}
    owner: alice
"""


def secrets_of(record: RuleRecord) -> list[str]:
    webhook = record.rule.action.webhook
    assert webhook is not None
    return webhook.secrets


@asynccontextmanager
async def stored(server: NatsServer) -> AsyncIterator[tuple[Bus, RuleStore]]:
    async with connected(server.url) as bus:
        store = RuleStore(bus)
        for each in await store.all():
            await store.delete(each.id)
        yield bus, store


async def test_a_change_is_a_new_version_and_keeps_the_secret(nats_server: NatsServer) -> None:
    async with stored(nats_server) as (_, store):
        plain = rule("hook", URL, "lifecycle.completed", webhook={"secrets": []})
        first = await store.apply(plain, user("u1"))
        [secret] = secrets_of(first)
        check_secret(secret)
        changed = rule("hook", URL, "lifecycle.failed", webhook={"secrets": []})
        second = await store.apply(changed, user("u1"))
        assert (first.version, second.version) == (1, 2)
        assert secrets_of(second) == [secret]
        assert second.uid == first.uid
        other = await store.apply(changed, user("u2"))
        assert other.uid != first.uid
        assert secrets_of(other) != [secret], "another owner must not sign with it"


async def test_of_two_changes_at_once_one_is_refused(nats_server: NatsServer) -> None:
    async with stored(nats_server) as (_, store):
        made = rule("hook", URL, "lifecycle.completed")
        results = await asyncio.gather(
            *(store.apply(made, user("u1")) for _ in range(4)), return_exceptions=True
        )
        refused = [each for each in results if isinstance(each, BaseException)]
        assert len(refused) == 3
        assert all(isinstance(each, VersionConflict) for each in refused)


async def test_a_rule_begins_after_its_making_and_after_its_pause(nats_server: NatsServer) -> None:
    async with stored(nats_server) as (bus, store):
        made = rule("hook", URL, "lifecycle.completed")

        async def publish() -> int:
            return await bus.publisher.publish(event(new_run_id(), 1, type="lifecycle.completed"))

        before = await publish()
        first = await store.apply(made, user("u1"))
        assert first.begins["EVENTS"] == before
        await publish()
        assert (await store.apply(made, user("u1"))).begins == first.begins, (
            "a change loses no event"
        )
        assert await store.pause("hook", "why", "u1")
        assert not await store.pause("hook", "again", "u1")
        during = await publish()
        assert await store.resume("hook")
        found = await store.get("hook")
        assert found is not None
        assert found.record.paused is None
        assert found.record.begins["EVENTS"] == during
        assert not await store.resume("hook")
        assert await store.delete("hook")
        assert not await store.delete("hook")


async def test_changes_are_followed_and_a_record_that_cannot_be_read_harms_no_other(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with stored(nats_server) as (bus, store):
        current = CurrentRules(bus)
        following = asyncio.create_task(current.follow())
        await bus.bucket("rules").put("broken", b'{"rule": {"id": "broken"}}')
        await store.apply(rule("hook", URL, "lifecycle.completed"), user("u1"))

        async def known() -> bool:
            return current.index.has_type("lifecycle.completed")

        await eventually(known, what="the rule")
        assert current.types() == {"lifecycle.completed"}
        assert "the rule broken cannot be read" in caplog.text
        await store.pause("hook", "why", "u1")

        async def gone() -> bool:
            return not current.index.has_type("lifecycle.completed")

        await eventually(gone, what="the pause")
        assert current.get("hook") is not None
        following.cancel()
        await asyncio.wait([following])
        await bus.bucket("rules").delete("broken")


async def test_processes_that_change_consumers_at_once_leave_the_subjects_of_all_rules(
    nats_server: NatsServer,
) -> None:
    async with stored(nats_server) as (bus, store):
        processes = [Consumers(bus, CurrentRules(bus), "automations", 5) for _ in range(4)]
        types = ["lifecycle.completed", "lifecycle.failed", "llm.tool_call", "state.delta"]

        async def add(number: int) -> None:
            await store.apply(rule(f"r{number}", URL, types[number]), user("u1"))
            await processes[number].update()

        await asyncio.gather(*map(add, range(4)))
        info = await bus.api("CONSUMER.INFO.EVENTS.automations")
        assert info["config"]["filter_subjects"] == [f"{type_}.*" for type_ in types]
        assert "llm.stream" not in str(info["config"])


def write(folder: Path, text: str) -> Path:
    path = folder / "rules.yaml"
    path.write_text(text)
    return path


async def test_a_file_makes_changes_and_deletes_its_rules_and_no_others(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    async with stored(nats_server) as (_, store):
        await store.apply(rule("mine", URL, "lifecycle.completed"), user("u1"))
        path = write(tmp_path, FILE.format(url=URL))
        await apply_file(path, store, Config())
        await apply_file(path, store, Config())
        found = {each.id: each.record for each in await store.all()}
        assert {id: each.version for id, each in found.items()} == {
            "mine": 1,
            "first": 1,
            "second": 1,
        }
        assert secrets_of(found["first"]) == [SECRET]
        assert (found["first"].all_users, found["second"].all_users) == (True, False)
        assert found["second"].owner == Owner(user_id="alice", scopes=sorted(DEFAULT))
        assert found["first"].owner.has_scope("act-as")
        head, _, _ = FILE.partition("  - id: second")
        write(tmp_path, head.format(url=f"{URL}/changed"))
        await apply_file(path, store, Config())
        found = {each.id: each.record for each in await store.all()}
        assert {id: each.version for id, each in found.items()} == {"mine": 1, "first": 2}


RUNNING = """
rules:
  - id: starts
    subjects: [lifecycle.completed]
    action: {run: {agent: nobody, message: Hi}}
    owner: alice
"""


async def test_a_file_with_an_unknown_agent_changes_no_rule(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with stored(nats_server) as (_, store):
        path = write(tmp_path, RUNNING)
        with pytest.raises(
            ConfigurationError, match=r"rule 1 is wrong: action\.run\.agent: .*nobody"
        ):
            await apply_file(path, store, Config())
        assert await store.all() == []
        with pytest.raises(ConfigurationError, match="the rule needs an owner"):
            read_rules(write(tmp_path, RUNNING.replace("    owner: alice\n", "")))


async def test_a_rule_of_the_file_that_was_accepted_before_stops_no_start(
    nats_server: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "rules: [{id: old, subjects: [llm.tool_call], where: event.data.tol == 1, "
    text += f"action: {{webhook: {{url: '{URL}', secrets: [{SECRET}]}}}}}}]"
    async with stored(nats_server) as (_, store):
        path = write(tmp_path, text)
        with pytest.raises(ConfigurationError, match=r"event\.data\.tol: did you mean"):
            await apply_file(path, store, Config())
        [value] = yaml.safe_load(text)["rules"]
        operator = owner_of(None)
        earlier = Rule.model_validate(value)  # as a version did that checked no fields
        await store.apply(earlier, operator, all_users=True, source="file")
        await apply_file(path, store, Config())
        [found] = await store.all()
        assert (found.id, found.record.version) == ("old", 1)
        assert "stays as it was accepted before: where" in caplog.text
        with pytest.raises(ConfigurationError, match="rule 1 is wrong: where"):
            await apply_file(write(tmp_path, text.replace("== 1", "== 2")), store, Config())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rules: [", "cannot be read"),
        ("rules: 1", "a list of rules"),
        ("rule: []", "one key, `rules`"),
        (FILE.format(url="ftp://x"), "rule 1 is wrong: action.webhook.url"),
        (FILE.format(url=URL).replace('"x"', '"x" +'), r"rule 2 is wrong: where \(line 1"),
        (FILE.format(url=URL).replace("HOOK_SECRET", "NOT_THERE"), "NOT_THERE is not set"),
        (FILE.format(url=URL).replace("second", "first"), "used twice: first"),
    ],
)
def test_a_wrong_file_is_refused_with_the_rule_and_the_field(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    with pytest.raises(ConfigurationError, match=reason) as refused:
        read_rules(write(tmp_path, text))
    assert SECRET not in str(refused.value)


async def test_rules_of_nobody_are_paused_once_callers_are_authenticated(
    nats_server: NatsServer,
) -> None:
    async with stored(nats_server) as (_, store):
        await store.apply(rule("open", URL, "lifecycle.completed"), user("anonymous"))
        operators = Owner(user_id="anonymous")
        made = rule("file", URL, "lifecycle.completed")
        await store.apply(made, operators, source="file")
        await store.apply(rule("mine", URL, "lifecycle.completed"), user("u1"))
        await pause_rules_without_owner(store)
        await pause_rules_without_owner(store)
        found = {each.id: each.record.paused for each in await store.all()}
        assert found["open"] is not None
        assert "make it with a token" in found["open"].reason
        assert (found["file"], found["mine"]) == (None, None)


async def test_rules_in_memory_are_those_of_the_bucket_after_any_changes(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stored(nats_server) as (bus, store):
        reconnected: list[Callable[[], None]] = []
        monkeypatch.setattr(bus, "on_reconnect", reconnected.append)
        current = CurrentRules(bus)
        compiled: list[str] = []
        parse = store_module.parse_rule

        def counting(
            keys: RuleKeys, rule_id: str, value: bytes, revision: int
        ) -> CompiledRule | None:
            compiled.append(rule_id)
            return parse(keys, rule_id, value, revision)

        monkeypatch.setattr(store_module, "parse_rule", counting)

        async def check(*ids: str) -> None:
            await asyncio.gather(*(current.refresh() for _ in range(3)))
            assert {each.id: each.revision for each in current.all()} == {
                each.id: each.revision for each in await store.all()
            }
            assert {each.id for each in current.all()} == set(ids)

        for name in "abc":
            await store.apply(rule(name, URL, "lifecycle.completed"), user("u1"))
        await check("a", "b", "c")
        await store.delete("b")
        await store.apply(rule("d", URL, "lifecycle.failed"), user("u1"))
        compiled.clear()
        await current.refresh()
        assert compiled == ["d"], "rules that have not changed are not compiled again"
        await check("a", "c", "d")
        await store.apply(rule("lost", URL, "lifecycle.failed"), user("u1"))
        await check("a", "c", "d", "lost")
        # As if NATS had come back with an older store, without the rule.
        await bus.jetstream.api("STREAM.PURGE.KV_rules", {"filter": "$KV.rules.lost"})
        for callback in reconnected:
            callback()
        await check("a", "c", "d")
        await store.delete("a")
        monkeypatch.setattr(store_module, "MARKER_S", 0)  # as if the marker had expired
        await store.apply(rule("b", URL, "lifecycle.failed"), user("u1"))
        await check("b", "c", "d")
