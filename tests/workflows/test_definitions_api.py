"""Definitions are stored over HTTP as versions that never change, and start runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import yaml

from penstock.bus import Bus, BusSettings, streams, subjects
from penstock.bus.records.runs import StartCommand
from penstock.bus.records.workflows import LatestWorkflow, WorkflowRecord
from penstock.runs.workflows import latest_key, version_key
from penstock.service import Service
from penstock.settings import AgnoAgent, AuthSettings, Config, ConfigurationError, Settings
from penstock_workflows.definition import load_value
from penstock_workflows.registry import (
    BY,
    TooManyWorkflows,
    VersionConflict,
    WorkflowStore,
    apply_files,
    read_files,
)
from penstock_workflows.service import WorkflowsService
from penstock_workflows.settings import WorkflowsSettings
from support.drive.secured import bearer, served
from support.fakes.issuer import SECRET
from support.real.nats import NatsServer
from support.real.ports import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
URL = "http://127.0.0.1:9"
CONFIG = Config(
    agents=[
        AgnoAgent(id=id, protocol="agno", url=URL)
        for id in ("assistant", "linter", "scanner", "writer", "global_supervisor")
    ]
)
AUTHOR = bearer("author", scope="read start workflow")
READER = bearer("reader", scope="read start")
EXAMPLES = Path(__file__).parent / "definitions"


class Quiet(WorkflowsService):
    """The routes alone: commands stay in their stream."""

    async def start(self) -> None:
        return


def greet(version: str = "1", agent: str = "assistant", **fields: Any) -> dict[str, Any]:
    steps = {"hello": {"run": {"agent": agent, "message": '"Greet " + input.who'}}}
    schema = {
        "type": "object",
        "required": ["who"],
        "properties": {"who": {"type": "string", "maxLength": 10}},
        "additionalProperties": False,
    }
    whole = {"dsl": "penstock/1", "name": "greet", "version": version, "input": schema}
    return {**whole, "steps": steps, **fields}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusSettings(url=nats_server.url, name="test"))
    yield bus
    await bus.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(nats_server: NatsServer, bus: Bus) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(
        nats_url=nats_server.url,
        port=free_port(),
        probe_port=free_port(),
        drain_s=1,
        auth=AuthSettings(jwt_secret=SECRET, leeway_s=0),
    )
    services: list[type[Service]] = [Quiet]
    async with (
        served(settings, CONFIG, services),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{settings.port}", timeout=30) as http,
    ):
        yield http


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def no_definitions(bus: Bus) -> None:
    bucket = bus.bucket("workflows")
    for entry in await bucket.entries():
        await bucket.delete(entry.key)


async def put(
    http: httpx.AsyncClient, value: dict[str, Any], headers: dict[str, str] = AUTHOR
) -> httpx.Response:
    path = f"/v1/workflows/{value['name']}/versions/{value['version']}"
    return await http.put(path, json=value, headers=headers)


async def latest(http: httpx.AsyncClient) -> str | None:
    [found] = (await http.get("/v1/workflows", headers=READER)).json()["workflows"]
    version: str | None = found["version"]
    return version


async def start(http: httpx.AsyncClient, body: Any, **headers: str) -> httpx.Response:
    return await http.post("/v1/workflows/greet/runs", json=body, headers={**READER, **headers})


async def commands(bus: Bus) -> list[StartCommand]:
    """Return the commands that were published, and delete them."""
    pattern = subjects.command("workflows", "start", "*")
    found = []
    while (stored := await bus.tail(streams.COMMANDS, pattern)) is not None:
        found.append(StartCommand.model_validate_json(stored.payload))
        await bus.api(f"STREAM.MSG.DELETE.{streams.COMMANDS}", {"seq": stored.sequence})
    return found


async def test_a_version_is_stored_once_and_shown(http: httpx.AsyncClient) -> None:
    made = await put(http, greet())
    assert made.status_code == 201, made.text
    assert made.json()["definition"] == greet()
    assert made.json()["created_by"] == "author"
    again = await put(http, greet())
    assert (again.status_code, again.json()) == (200, made.json())
    shown = await http.get("/v1/workflows/greet", headers=READER)
    assert shown.json() == made.json()
    listed = (await http.get("/v1/workflows", headers=READER)).json()
    assert listed["next"] is None
    [row] = listed["workflows"]
    assert (row["name"], row["version"], row["input"]) == ("greet", "1", greet()["input"])


async def test_the_order_of_fields_and_the_form_do_not_make_another_version(
    http: httpx.AsyncClient,
) -> None:
    await put(http, greet())
    text = yaml.safe_dump(greet(), sort_keys=True)
    again = await http.put(
        "/v1/workflows/greet/versions/1",
        content=text,
        headers={**AUTHOR, "content-type": "application/yaml"},
    )
    assert again.status_code == 200


async def test_a_changed_version_is_refused_and_nothing_changes(http: httpx.AsyncClient) -> None:
    first = await put(http, greet())
    changed = await put(http, greet(title="Another"))
    assert changed.status_code == 409
    assert "a stored version never changes" in changed.json()["detail"]
    shown = await http.get("/v1/workflows/greet/versions/1", headers=READER)
    assert shown.json() == first.json()


async def test_the_last_stored_version_is_the_latest_until_another_is_named(
    http: httpx.AsyncClient,
) -> None:
    await put(http, greet("1"))
    await put(http, greet("2"))
    assert await latest(http) == "2"
    await put(http, greet("1"))  # a repeated request does not go back
    assert await latest(http) == "2"
    named = await http.put("/v1/workflows/greet/latest", json={"version": "1"}, headers=AUTHOR)
    assert (named.status_code, named.json()["version"]) == (200, "1")
    await put(http, greet("2"))  # and does not undo what somebody has named
    assert await latest(http) == "1"
    versions = (await http.get("/v1/workflows/greet/versions", headers=READER)).json()["versions"]
    assert [(each["version"], each["is_latest"]) for each in versions] == [
        ("1", True),
        ("2", False),
    ]
    missing = await http.put("/v1/workflows/greet/latest", json={"version": "3"}, headers=AUTHOR)
    assert missing.status_code == 404


async def test_a_put_that_was_interrupted_is_finished_by_a_repeated_one(
    http: httpx.AsyncClient, bus: Bus
) -> None:
    await put(http, greet("1"))
    await put(http, greet("2"))
    # as if the process had ended before it wrote the pointer
    old = await bus.bucket("workflows").get(version_key("greet", "1"))
    assert old is not None
    record = WorkflowRecord.model_validate_json(old.value)
    pointer = LatestWorkflow(version="1", updated_at=record.created_at, updated_by="author")
    await bus.bucket("workflows").put(latest_key("greet"), pointer.dump())
    assert await latest(http) == "1"
    assert (await put(http, greet("2"))).status_code == 200
    assert await latest(http) == "2"


async def test_a_schedule_starts_runs_for_nobody_for_whom_its_author_may_not(
    http: httpx.AsyncClient, bus: Bus
) -> None:
    times = {"cron": "0 9 * * *", "input": {"who": "Ada"}}
    writer = bearer("writer", scope="read workflow")
    refused = await put(http, greet("7", schedule=times), headers=writer)
    assert (refused.status_code, "the scope start" in refused.json()["detail"]) == (403, True)
    for_other = greet("7", schedule={**times, "user": "grace"})
    assert (await put(http, for_other)).status_code == 403
    assert (await put(http, greet("7", schedule=times))).status_code == 201
    pointer = await WorkflowStore(bus).latest("greet")
    assert pointer is not None
    assert pointer.schedule is not None
    assert (pointer.schedule.user_id, pointer.schedule.started_by) == ("author", [])
    assert (await put(http, greet("8"))).status_code == 201
    pointer = await WorkflowStore(bus).latest("greet")
    assert pointer is not None
    assert pointer.schedule is None


async def test_a_schedule_in_a_file_names_its_user(bus: Bus, tmp_path: Path) -> None:
    path = tmp_path / "filed.yaml"
    schedule = {"cron": "0 9 * * *", "input": {"who": "Ada"}}
    path.write_text(yaml.safe_dump(greet("1", name="filed", schedule=schedule)))
    with pytest.raises(ConfigurationError, match=r"schedule\.user: a run belongs to a user"):
        await apply_files(path, WorkflowStore(bus), CONFIG)


async def test_many_writers_at_once_store_one_version(bus: Bus) -> None:
    store = WorkflowStore(bus)

    async def write(number: int) -> str:
        try:
            _, outcome = await store.put(load_value(greet(title=f"by {number}")), "x")
        except VersionConflict:
            return "changed"
        return outcome

    outcomes = await asyncio.gather(*(write(number % 5) for number in range(20)))
    assert outcomes.count("created") == 1
    assert outcomes.count("same") == 3  # the same content, four times in all


async def test_a_user_makes_a_limited_number_of_workflows_and_another_user_has_his_own(
    bus: Bus,
) -> None:
    store = WorkflowStore(bus, per_user=2)
    for name in ("one", "two"):
        await store.put(load_value(greet(name=name)), "alice")
        await store.name_latest(name, None, "bob")  # who retires it does not become its maker
    with pytest.raises(TooManyWorkflows, match="PENSTOCK_WORKFLOWS_PER_USER"):
        await store.put(load_value(greet(name="three")), "alice")
    await store.put(load_value(greet("2", name="two")), "alice")
    for name in ("three", "four"):
        await store.put(load_value(greet(name=name)), "bob")
    for name in ("five", "six", "seven"):
        await store.put(load_value(greet(name=name)), BY)


async def test_a_tenant_makes_a_limited_number_of_workflows_and_another_tenant_has_its_own(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = WorkflowStore(bus, per_user=2, tenant_limits=2)
    for number in range(4):
        await store.put(load_value(greet(name=f"a{number}")), f"u{number // 2}", "acme")
    with pytest.raises(TooManyWorkflows, match="this tenant may make 4"):
        await store.put(load_value(greet(name="more")), "u9", "acme")
    await store.put(load_value(greet(name="more")), "u9", "globex")
    monkeypatch.setattr("penstock_workflows.registry.MAX_OF_TENANT", 1)
    with pytest.raises(TooManyWorkflows, match="this tenant may make 1"):
        await store.put(load_value(greet(name="last")), "u8", "globex")


async def test_the_setting_limits_the_workflows_that_are_made_over_http(
    http: httpx.AsyncClient,
) -> None:
    default = WorkflowsSettings.model_fields["workflows_per_user"].default
    someone = bearer("someone", scope="workflow")
    for number in range(default):
        assert (await put(http, greet(name=f"w{number}"), someone)).status_code == 201
    refused = await put(http, greet(name="one-more"), someone)
    assert refused.status_code == 409
    assert "PENSTOCK_WORKFLOWS_PER_USER" in refused.json()["detail"]
    assert (await put(http, greet(name="of-the-author"))).status_code == 201


async def test_a_retired_workflow_is_not_started_and_its_versions_stay(
    http: httpx.AsyncClient, bus: Bus
) -> None:
    await put(http, greet())
    assert (await http.delete("/v1/workflows/greet", headers=AUTHOR)).status_code == 204
    assert (await http.delete("/v1/workflows/greet", headers=AUTHOR)).status_code == 204
    [row] = (await http.get("/v1/workflows", headers=READER)).json()["workflows"]
    assert (row["retired"], row["version"]) == (True, None)
    for body in ({"input": {"who": "Ada"}}, {"input": {"who": "Ada"}, "version": "1"}):
        refused = await start(http, body)
        assert refused.status_code == 404
        assert "retired" in refused.json()["detail"]
    assert (await put(http, greet())).json()["is_latest"] is False
    kept = await http.get("/v1/workflows/greet/versions/1", headers=READER)
    assert kept.status_code == 200
    assert await commands(bus) == []
    await put(http, greet("2"))
    assert await latest(http) == "2"


async def test_mistakes_are_named_with_their_lines(http: httpx.AsyncClient) -> None:
    text = "dsl: penstock/1\nname: greet\nversion: '1'\nsteps:\n  a:\n    set: nope\n"
    for method, path in (("POST", "validate"), ("PUT", "greet/versions/1")):
        refused = await http.request(
            method,
            f"/v1/workflows/{path}",
            content=text,
            headers={**AUTHOR, "content-type": "application/yaml"},
        )
        assert refused.status_code == 422
        [error] = refused.json()["errors"]
        assert (error["line"], error["column"], error["field"]) == (6, 10, "steps.a.set")
        assert "undeclared reference to 'nope'" in error["message"]
    assert (await http.get("/v1/workflows", headers=READER)).json()["workflows"] == []


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (greet(agent="assistent"), 'there is no agent assistent: did you mean "assistant"?'),
        (
            greet(steps={"a": {"workflow": {"workflow": "gret"}}}),
            "there is no workflow gret",
        ),
        (greet(name="writer"), "the configuration has an agent writer: choose another name"),
        (greet(input={"type": "array"}), "the input of a workflow is an object"),
        (greet(nmae="x"), "there is no field 'nmae': did you mean \"name\"?"),
    ],
)
async def test_what_the_definition_names_must_exist(
    http: httpx.AsyncClient, value: dict[str, Any], told: str
) -> None:
    refused = await put(http, value)
    assert refused.status_code == 422
    assert told in refused.json()["detail"]
    checked = await http.post("/v1/workflows/validate", json=value, headers=AUTHOR)
    assert checked.json()["errors"] == refused.json()["errors"]


async def test_a_definition_is_checked_without_being_stored(http: httpx.AsyncClient) -> None:
    checked = await http.post("/v1/workflows/validate", json=greet(), headers=AUTHOR)
    assert checked.status_code == 200
    assert checked.json()["mermaid"].startswith("flowchart TD")
    assert (await http.get("/v1/workflows/greet", headers=READER)).status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/workflows/gree/versions/1", 422),
        ("/v1/workflows/greet/versions/2", 422),
        ("/v1/workflows/*/versions/1", 404),
        ("/v1/workflows/%3E/versions/1", 404),
        ("/v1/workflows/a.b/versions/1", 404),
    ],
)
async def test_the_path_and_the_definition_must_agree(
    http: httpx.AsyncClient, path: str, status: int
) -> None:
    refused = await http.put(path, json=greet(), headers=AUTHOR)
    assert refused.status_code == status


@pytest.mark.parametrize("path", ["*", ">", "a.b", "%0A", "x" * 65, "nothing"])
async def test_an_unknown_name_is_404(http: httpx.AsyncClient, path: str) -> None:
    for method, more in (
        ("GET", ""),
        ("GET", "/versions"),
        ("GET", "/versions/1"),
        ("GET", "/versions/%3E"),
        ("DELETE", ""),
    ):
        answer = await http.request(method, f"/v1/workflows/{path}{more}", headers=AUTHOR)
        assert answer.status_code == 404, (method, more)
    started = await http.post(f"/v1/workflows/{path}/runs", json={}, headers=READER)
    assert started.status_code == 404


async def test_a_body_of_another_type_or_size_is_refused(http: httpx.AsyncClient) -> None:
    path = "/v1/workflows/greet/versions/1"
    for type_, status in (("text/plain", 415), ("", 415), ("text/yaml", 422)):
        headers = {**AUTHOR, "content-type": type_}
        assert (await http.put(path, content="x", headers=headers)).status_code == status
    large = await put(http, greet(description="x" * 300_000))
    assert large.status_code == 413


async def test_workflows_are_listed_in_pages(http: httpx.AsyncClient) -> None:
    for name in ("c", "a", "b"):
        await put(http, greet() | {"name": name})
    first = (await http.get("/v1/workflows?limit=2", headers=READER)).json()
    assert ([each["name"] for each in first["workflows"]], first["next"]) == (["a", "b"], "b")
    second = (await http.get("/v1/workflows?limit=2&after=b", headers=READER)).json()
    assert ([each["name"] for each in second["workflows"]], second["next"]) == (["c"], None)


# starts


async def test_a_start_publishes_one_command_with_the_version_that_was_checked(
    http: httpx.AsyncClient, bus: Bus
) -> None:
    await put(http, greet("1"))
    await put(http, greet("2"))
    await commands(bus)
    started = await start(http, {"input": {"who": "Ada"}}, **{"idempotency-key": "k-latest"})
    assert started.status_code == 202, started.text
    record = started.json()
    assert (record["agent"], record["user_id"], record["target"]) == (
        "greet",
        "reader",
        "workflows",
    )
    [command] = await commands(bus)
    assert (command.run_id, command.input) == (record["run_id"], {"who": "Ada"})
    assert (command.workflow, command.version) == ("greet", "2")
    repeated = await start(http, {"input": {"who": "Ada"}}, **{"idempotency-key": "k-latest"})
    assert (repeated.status_code, repeated.json()["run_id"]) == (200, record["run_id"])
    other = await start(http, {"input": {"who": "Bob"}}, **{"idempotency-key": "k-latest"})
    assert other.status_code == 409
    pinned = await start(http, {"input": {"who": "Ada"}, "version": "1"})
    assert pinned.status_code == 202
    assert (await commands(bus))[0].version == "1"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input.who"),
        ({"input": {"who": 1}}, "input.who"),
        ({"input": {"who": "x" * 11}}, "input.who"),
        ({"input": {"who": "Ada", "whom": 1}}, "input.whom"),
        ({"inputs": {}}, "inputs"),
        ({"input": []}, "input"),
        ({"input": {"who": "Ada"}, "version": 1}, "version"),
    ],
)
async def test_an_input_that_does_not_fit_starts_nothing(
    http: httpx.AsyncClient, bus: Bus, body: Any, field: str
) -> None:
    await put(http, greet())
    await commands(bus)
    runs = await bus.bucket("runs").keys()
    refused = await start(http, body)
    assert refused.status_code == 422, refused.text
    assert [each["field"] for each in refused.json()["errors"]] == [field]
    assert await commands(bus) == []
    assert await bus.bucket("runs").keys() == runs


async def test_another_user_is_started_for_with_act_as_only(http: httpx.AsyncClient) -> None:
    await put(http, greet())
    body = {"input": {"who": "Ada"}, "user_id": "victim"}
    assert (await start(http, body)).status_code == 403
    acting = bearer("boss", scope="start act-as")
    assert (await start(http, body, **acting)).json()["user_id"] == "victim"


async def test_readers_change_nothing(http: httpx.AsyncClient) -> None:
    await put(http, greet())
    assert (await put(http, greet("2"), READER)).status_code == 403
    assert (await http.delete("/v1/workflows/greet", headers=READER)).status_code == 403
    body = {"version": "1"}
    named = await http.put("/v1/workflows/greet/latest", json=body, headers=READER)
    assert named.status_code == 403
    assert await latest(http) == "1"


# files


async def test_the_definitions_of_a_folder_are_stored(bus: Bus) -> None:
    store = WorkflowStore(bus)
    config = Config(
        agents=[
            *CONFIG.agents,
            *(
                AgnoAgent(id=id, protocol="agno", url=URL)
                for id in ("team_supervisor", "database_monitor")
            ),
        ]
    )
    for _ in range(2):  # a second start changes nothing
        await apply_files(EXAMPLES, store, config)
        named = [(each.name, each.latest.version) for each in await store.workflows()]
        assert named == [
            ("code_review", "1"),
            ("diagnosis", "3"),
            ("diagnosis_team", "1"),
            ("refund", "1"),
        ]
    pointer = await store.latest("refund")
    assert pointer is not None
    assert pointer.schedule is not None
    assert (pointer.schedule.user_id, pointer.schedule.started_by) == ("ada", [])


async def test_a_file_with_mistakes_stores_nothing_and_names_file_and_line(
    bus: Bus, tmp_path: Path
) -> None:
    store = WorkflowStore(bus)
    good, bad = tmp_path / "a.yaml", tmp_path / "b.yaml"
    good.write_text(yaml.safe_dump(greet()))
    bad.write_text("dsl: penstock/1\nname: b\nversion: '1'\nsteps: {a: {set: nope}}\n")
    with pytest.raises(ConfigurationError, match=r"b.yaml:4:18: steps.a.set: undeclared"):
        await apply_files(tmp_path, store, CONFIG)
    bad.write_text(
        "dsl: penstock/1\nname: b\nversion: '1'\nsteps:\n  a: {workflow: {workflow: c}}\n"
    )
    with pytest.raises(ConfigurationError, match=r"b.yaml:5:28: .*there is no workflow c"):
        await apply_files(tmp_path, store, CONFIG)
    assert await store.workflows() == []
    bad.write_text(yaml.safe_dump(greet(title="The same name and version")))
    with pytest.raises(ConfigurationError, match="have the same workflow greet, version 1"):
        read_files(tmp_path)
    bad.unlink()
    await apply_files(tmp_path, store, CONFIG)
    good.write_text(yaml.safe_dump(greet(title="Changed")))
    with pytest.raises(ConfigurationError, match=r"a.yaml: version 1 .* give the definition a new"):
        await apply_files(tmp_path, store, CONFIG)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_files(tmp_path / "missing.yaml")
