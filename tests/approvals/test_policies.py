"""The stored policy is used, else the file's. A policy with a mistake is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from penstock.bus import Retry
from penstock.documents import store as document_store
from penstock.documents.store import VersionConflict
from penstock.settings import Config, ConfigurationError
from penstock.turns import TenantUser
from penstock_approvals.policy.document import parse
from penstock_approvals.service import ApprovalsService
from penstock_approvals.store.policies import Policies
from penstock_cli.main import app
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Pipeline, Services, pipeline, types
from support.drive.secured import Secured, bearer, secured
from support.drive.waiting import eventually
from support.fakes.pauses import confirmation, continues, pause, start_and_pause
from support.fakes.policies import person, vote, written
from support.real.nats import NatsServer

ONE: Services = (NormalizerService, ApprovalsService)
TWO: Services = (*ONE, ApprovalsService)
ALLOW = {"rules": [{"id": "all", "outcome": "approve"}]}


async def holds(penstock: Pipeline, version: int) -> None:
    """Wait until all instances of the service have this version."""

    async def read() -> bool:
        services = [each for each in penstock.services if isinstance(each, ApprovalsService)]
        with suppress(Retry):  # no policy holds
            return all(each._policies.current.version == version for each in services)
        return False

    await eventually(read, what=f"policy {version}")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_store, "CHECK_S", 0.05)
    monkeypatch.setattr(document_store, "RETRY_S", 0.05)


async def test_a_stored_policy_replaces_the_files_without_a_restart(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    path = written(tmp_path, "")
    async with pipeline(fresh_nats.url, Config(), TWO, policy=path) as penstock:
        asked = await pause(penstock)
        answer = await penstock.http.put("/v1/policy", json={"version": 2, **ALLOW})
        assert answer.status_code == 403, "anonymous callers do not administer"
        stored = Policies(penstock.bus, path)
        await stored.load()
        await stored.apply({"version": 2, **ALLOW}, "root")
        await holds(penstock, 2)
        run_id = await start_and_pause(penstock)
        events = await penstock.events_until(run_id, "approval.decided")
        before = await penstock.approval(asked.approval_id)
        await penstock.bus.bucket("policies").delete("current")
        await holds(penstock, 1)
    assert "lifecycle.paused" not in types(events)
    assert events[-1].data["policy"] == "all@2"
    assert before == asked, "a request keeps the policy under which it was asked"


async def test_a_file_is_read_again_when_it_changes(nats: NatsServer, tmp_path: Path) -> None:
    path = written(tmp_path, "")
    async with pipeline(nats.url, Config(), ONE, policy=path) as penstock:
        [service] = [each for each in penstock.services if isinstance(each, ApprovalsService)]
        path.write_text("version: 2\nrules: [{id: all, outcome: aprove}]\n")

        async def refused() -> bool:
            return "outcome" in service._policies.refused.get("file", "")

        await eventually(refused, what="the refusal")
        assert service._policies.current.version == 1, "the policy before it stays"
        path.unlink()
        await eventually(lambda: _says(service, "No such file"), what="the missing file")
        assert service._policies.current.version == 1
        path.write_text("version: 3\n")
        await holds(penstock, 3)
        assert service._policies.refused == {}
        path.rename(tmp_path / "away")
        await eventually(lambda: _says(service, "No such file"), what="the missing file")
        (tmp_path / "away").rename(path)

        async def accepted() -> bool:
            return service._policies.refused == {}

        await eventually(accepted, what="that the same file is no longer refused")


async def _says(service: ApprovalsService, words: str) -> bool:
    return words in service._policies.refused.get("file", "")


@pytest.mark.parametrize("text", ["version: x", "{", ""])
async def test_a_wrong_file_ends_the_start(nats: NatsServer, tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"policy\.yaml"):
        async with pipeline(nats.url, Config(), ONE, policy=path):
            pass


async def test_with_a_wrong_record_and_nothing_before_it_no_request_is_handled(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    """If requests were handled, the laxer policy of the file would decide."""
    path = written(tmp_path, "default: {outcome: approve}\n")
    async with pipeline(fresh_nats.url, Config(), (NormalizerService,)) as penstock:
        bucket = penstock.bus.bucket("policies")
        await bucket.put("current", b'{"policy": {"version": "x"}, "by": "a", "at": "b"}')
        async with pipeline(fresh_nats.url, Config(), (ApprovalsService,), policy=path) as other:
            run_id = await start_and_pause(penstock)
            await asyncio.sleep(0.5)
            assert not await continues(penstock, run_id)
            stored = Policies(penstock.bus)
            await stored.apply({"version": 1}, "root")
            await holds(other, 1)
            events = await penstock.events_until(run_id, "lifecycle.paused")
    assert "approval.decided" not in types(events)


async def test_of_two_policies_of_one_version_one_is_stored(fresh_nats: NatsServer) -> None:
    async with pipeline(fresh_nats.url, Config(), ()) as penstock:
        stores = [Policies(penstock.bus) for _ in range(8)]

        async def apply(store: Policies, number: int) -> str:
            note = {"outcome": "reject", "note": str(number)}
            try:
                await store.apply({"version": 5, "default": note}, f"p{number}")
            except VersionConflict:
                return "conflict"
            return "stored"

        found = await asyncio.gather(*(apply(each, n) for n, each in enumerate(stores)))
        kept = await penstock.bus.bucket("policies").get("current")
    assert Counter(found) == {"stored": 1, "conflict": 7}
    assert kept is not None
    record: dict[str, Any] = orjson.loads(kept.value or b"")
    assert record["by"] == f"p{record['policy']['default']['note']}"


async def test_administrators_show_try_and_replace_the_policy(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    root = bearer("root", scope="administer")
    async with secured(fresh_nats.url) as made:
        penstock: Secured = made
        shown = await penstock.http.get("/v1/policy", headers=root)
        wrong = await penstock.http.put(
            "/v1/policy",
            json={"version": 1, "rules": [{"id": "a", "outcome": "ask", "when": "args.x >"}]},
            headers=root,
        )
        stored = await penstock.http.put("/v1/policy", json={"version": 1, **ALLOW}, headers=root)
        again = await penstock.http.put("/v1/policy", json={"version": 1, **ALLOW}, headers=root)
        mistaken = {"policy": {"version": 1, "rules": [{"id": "a", "outcome": "perhaps"}]}}
        tried = await penstock.http.post("/v1/policy/try", json=mistaken, headers=root)
        escalations = [{"at": "2026-11-27T10:00:00Z", "to": {"roles": ["leads"]}}]
        await penstock.approval(
            await penstock.live(), deciders=[{"users": ["requester"]}], escalations=escalations
        )
        trying = ["policy", "try", str(written(tmp_path, "default: {outcome: approve}\n"))]
        variables = {"PENSTOCK_TOKEN": root["authorization"].removeprefix("Bearer ")}
        run = partial(CliRunner().invoke, app, [*trying, "--url", made.url], env=variables)
        in_terminal = await asyncio.to_thread(run)
    assert (tried.status_code, "rules[0].outcome" in tried.json()["detail"]) == (422, True)
    assert in_terminal.exit_code == 0, in_terminal.output
    assert "1 of 1 requests would be decided otherwise" in in_terminal.output
    assert "ask 1 of (requester), later also (role leads)" in in_terminal.output
    assert (shown.json()["version"], shown.json()["source"]) == (0, "builtin")
    assert wrong.status_code == 422
    assert "rules[0].when: line 1, column 9" in wrong.json()["detail"]
    assert stored.status_code == 200, stored.text
    assert (stored.json()["source"], stored.json()["by"]) == ("kv", "root")
    assert stored.json()["policy"] == {"version": 1, **ALLOW}
    assert again.status_code == 409
    assert "give it the version 2" in again.json()["detail"]


TRIED = """version: 9
rules:
  - {id: b, match: {tool: delete_file, roles: [ops]}, when: 'args.path == "/b"', outcome: approve}
  - {id: c, when: 'args.path == "/c"', outcome: ask, need: 2, deciders: {roles: [ops]}}
  - {id: d, when: 'args.path == "/d" && now < timestamp("2100-01-01T00:00:00Z")', outcome: ask}
"""


async def test_a_policy_is_tried_on_the_last_requests_and_changes_nothing(
    fresh_nats: NatsServer, tmp_path: Path
) -> None:
    policy = written(tmp_path, "rules: [{id: e, when: 'args.path == \"/e\"', outcome: reject}]\n")
    async with pipeline(fresh_nats.url, Config(), ONE, policy=policy) as penstock:
        [service] = [each for each in penstock.services if isinstance(each, ApprovalsService)]
        runs = {}
        for name in ("a", "b", "c", "d", "e"):
            asks = confirmation(path=f"/{name}")
            runs[name] = await start_and_pause(penstock, asks, roles=["ops"])
            last = "approval.decided" if name == "e" else "lifecycle.paused"
            events = await penstock.events_until(runs[name], last)
            if name == "c":
                c = await penstock.approval(events[-1].data["approval_id"])
                await penstock.ask(c.approval_id, vote(c, person("u1"), args={"path": "/edited"}))
                await penstock.events_until(runs[name], "approval.decided")
        await penstock.bus.bucket("runs").delete(runs["b"])
        root = TenantUser("", "root")
        found = await service._approvals.try_policy(parse(TRIED), 5, root)
        of_two = await service._approvals.try_policy(parse(TRIED), 2, root)
        commands = await continues(penstock, runs["a"])
    said = {
        each["run_id"]: (each["was"]["outcome"], each["would_be"]["rule"], each["ended"])
        for each in found["otherwise"]
    }
    assert (found["tried"], found["incomplete"], commands) == (5, 1, [])
    assert said == {
        # The run of /b is gone, and with it the role that the policy wants.
        runs["e"]: ("reject", "default", "rejected by policy"),
        runs["c"]: ("ask", "c", "approved by u1"),
    }
    assert (of_two["tried"], [each["run_id"] for each in of_two["otherwise"]]) == (2, [runs["e"]])


@pytest.mark.parametrize(
    ("policy", "editable", "status"),
    [
        (None, True, 200),
        ("default: {outcome: ask}\n", False, 422),
        ("default: {outcome: ask, edit: args.other}\n", True, 422),
        ("default: {outcome: ask, edit: args.path}\n", True, 200),
    ],
    ids=["no policy", "no edit", "another argument", "this argument"],
)
async def test_an_item_is_editable_if_the_policy_lets_a_decision_change_arguments(
    fresh_nats: NatsServer, tmp_path: Path, policy: str | None, editable: bool, status: int
) -> None:
    path = None if policy is None else written(tmp_path, policy)
    async with pipeline(fresh_nats.url, Config(), ONE, policy=path) as penstock:
        approval = await pause(penstock)
        one = f"/v1/approvals/{approval.approval_id}"
        shown = (await penstock.http.get(one)).json()
        listed = (await penstock.http.get("/v1/approvals?status=pending")).json()["approvals"]
        accept = {"accept": "application/json"}
        page = (await penstock.http.get("/v1/approvals/events?after=0", headers=accept)).json()
        [item] = shown["items"]
        edited = {"item_id": item["item_id"], "decision": "approve", "args": {"path": "/y"}}
        body = {"items": [edited], "digest": shown["digest"]}
        answer = await penstock.http.post(f"{one}/decision", json=body)
    records = [shown, *listed, *(each["approval"] for each in page["changes"])]
    records = [each for each in records if each["approval_id"] == approval.approval_id]
    assert len(records) >= 3
    assert {each["items"][0]["editable"] for each in records} == {editable}
    assert answer.status_code == status, answer.text
    if status == 200:
        assert answer.json()["items"][0]["args"] == {"path": "/y"}
