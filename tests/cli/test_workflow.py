"""`penstock workflow` against the real services."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from typer.testing import CliRunner, Result

from penstock.bus import Bus, BusSettings
from penstock.service import Service
from penstock.settings import AgnoAgent, AuthSettings, Config, Settings
from penstock_cli.main import app
from penstock_cli.terminal.api import Api
from penstock_edge.service import EdgeService
from penstock_normalizer.service import NormalizerService
from penstock_workflows.service import WorkflowsService
from support.drive.secured import served
from support.drive.waiting import eventually
from support.fakes.issuer import SECRET, token
from support.real.nats import NatsServer
from support.real.ports import free_port

Invoke = Callable[..., Awaitable[Result]]

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLES = Path(__file__).parent.parent / "workflows" / "definitions"
CONFIG = Config(agents=[AgnoAgent(id="assistant", protocol="agno", url="http://127.0.0.1:9")])
OUTER = """\
# what a newcomer writes
dsl: penstock/1
name: outer
version: "1"
input: {type: object, required: [who], properties: {who: {type: string}}}
steps:
  greeting: {set: '"Hello " + input.who'}
  part:
    needs: [greeting]
    workflow: {workflow: inner, input: '{"text": greeting.output}'}
    output: result.text
output: part.output
"""
INNER = """\
dsl: penstock/1
name: inner
version: "1"
steps: {loud: {set: 'input.text + "!"'}}
output: loud.output
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment(nats_server: NatsServer) -> AsyncIterator[dict[str, str]]:
    """Run the services; yield the variables of a caller."""
    settings = Settings(
        nats_url=nats_server.url,
        port=free_port(),
        probe_port=free_port(),
        drain_s=1,
        auth=AuthSettings(jwt_secret=SECRET, leeway_s=0),
    )
    services: list[type[Service]] = [NormalizerService, WorkflowsService, EdgeService]
    caller = token(sub="alice", scope="start read workflow")
    environment = {
        "PENSTOCK_URL": f"http://127.0.0.1:{settings.port}",
        "PENSTOCK_TOKEN": caller,
        "COLUMNS": "200",
    }

    bus = await Bus.connect(BusSettings(url=nats_server.url, name="test"))  # makes the streams
    await bus.close()
    async with served(settings, CONFIG, services):
        yield environment


@pytest.fixture(scope="module")
def invoke(environment: dict[str, str]) -> Invoke:
    """Return a function that runs `penstock workflow`, `penstock runs` or `penstock cancel`."""

    async def run(*words: str, **more: str) -> Result:
        given = [*words] if words[0] in ("runs", "cancel") else ["workflow", *words]
        return await asyncio.to_thread(CliRunner().invoke, app, given, env={**environment, **more})

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a_outer.yaml").write_text(OUTER)
    (tmp_path / "b_inner.yaml").write_text(INNER)
    return tmp_path


async def test_definitions_are_stored_in_the_order_of_their_needs_and_run(
    invoke: Invoke, folder: Path
) -> None:
    stored = await invoke("apply", str(folder))
    assert stored.exit_code == 0, stored.output
    assert stored.stdout.splitlines() == [
        "inner: version 1 is stored and the latest",
        "outer: version 1 is stored and the latest",
    ]
    again = await invoke("apply", str(folder))
    assert (again.exit_code, again.stdout) == (0, stored.stdout)
    listed = await invoke("list")
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        ["inner", "1"],
        ["outer", "1"],
    ]
    shown = await invoke("show", "outer")
    assert yaml.safe_load(shown.stdout) == yaml.safe_load(OUTER)
    graph = await invoke("graph", "outer")
    assert "2. part      workflow inner; after greeting" in graph.stdout
    versions = await invoke("show", "outer", "--versions", "--json")
    assert json.loads(versions.stdout)["is_latest"] is True

    followed = await invoke("run", "outer", "--input", '{"who": "Ada"}', "--json")
    assert followed.exit_code == 0, followed.output
    events = [json.loads(line) for line in followed.stdout.splitlines()]
    started = [each["data"]["workflow"] for each in events if _type(each) == "workflow.started"]
    assert started == ["outer", "inner"]  # the events of the step's run are there, too
    assert _type(events[-1]) == "lifecycle.completed"
    assert "Hello Ada!" in json.dumps(events[-1]["data"])


WAITING = """\
dsl: penstock/1
name: waiting
version: "1"
steps:
  first: {set: '1'}
  long: {needs: [first], wait: 1h}
  each: {for_each: {in: '[1, 2]'}, wait: 1h}
"""


async def test_a_run_that_has_not_ended_names_its_open_steps(
    invoke: Invoke, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "waiting.yaml").write_text(WAITING)
    stored = await invoke("apply", str(tmp_path / "waiting.yaml"))
    assert stored.exit_code == 0, stored.output

    def start() -> str:
        with Api(environment["PENSTOCK_URL"], print, environment["PENSTOCK_TOKEN"]) as api:
            return str(api.call("POST", "/v1/workflows/waiting/runs", body={})["run_id"])

    run_id = await asyncio.to_thread(start)

    async def shown_run(run_id: str) -> dict[str, Any]:
        done = await invoke("runs", "show", run_id, "--json")
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    async def steps() -> list[str] | None:
        names = [each["step_id"] for each in (await shown_run(run_id)).get("open_steps", ())]
        return names if len(names) == 3 else None

    names = await eventually(steps, 60, what="three open steps")
    assert names is not None
    assert sorted(names) == ["step_each.0", "step_each.1", "step_long"]
    text = (await invoke("runs", "show", run_id)).stdout
    assert "step_long (wait)" in text
    assert (await invoke("cancel", run_id)).exit_code == 0

    async def ended() -> dict[str, Any] | None:
        found = await shown_run(run_id)
        return found if found["status"] == "cancelled" else None

    assert "open_steps" not in ((await eventually(ended, 60, what="the end")) or {})


def _type(event: dict[str, dict[str, str]]) -> str:
    return f"{event['event']['category']}.{event['event']['action']}"


async def test_an_input_that_does_not_fit_is_refused_with_its_path(
    invoke: Invoke, folder: Path
) -> None:
    await invoke("apply", str(folder))
    refused = await invoke("run", "outer", "--input", '{"who": 1}')
    assert refused.exit_code == 2
    assert "input.who: must be string, not 1" in refused.stderr
    for given in ("[1]", "{", "@/nowhere"):
        wrong = await invoke("run", "outer", "--input", given)
        assert wrong.exit_code == 2
        assert "--input" in wrong.stderr


@pytest.mark.parametrize("text", ['{"x": 1e400}', '{"x": NaN}', '{"x": "\\ud800"}', "[" * 5000])
async def test_an_input_that_cannot_be_sent_is_refused_in_one_sentence(
    invoke: Invoke, text: str
) -> None:
    refused = await invoke("run", "outer", "--input", text)
    assert refused.exit_code == 2
    assert isinstance(refused.exception, SystemExit)  # a traceback is another exception
    assert "this is not JSON" in refused.stderr


async def test_an_input_comes_from_a_file(invoke: Invoke, folder: Path) -> None:
    await invoke("apply", str(folder))
    (folder / "input").write_text('{"who": "Bob"}')
    followed = await invoke("run", "outer", "--input", f"@{folder / 'input'}")
    assert followed.exit_code == 0, followed.output
    assert "Hello Bob!" in followed.stdout


async def test_a_retired_workflow_does_not_run(invoke: Invoke, folder: Path) -> None:
    (folder / "old.yaml").write_text(INNER.replace("inner", "old"))
    await invoke("apply", str(folder / "old.yaml"))
    assert (await invoke("retire", "old")).exit_code == 0
    told = "the workflow old is retired: it cannot be started before a new version is stored"
    for words in (["run", "old"], ["show", "old"]):
        refused = await invoke(*words)
        assert refused.exit_code == 2
        assert told in refused.stderr
    again = await invoke("apply", str(folder / "old.yaml"))
    assert (again.exit_code, again.stdout) == (0, "old: version 1 is stored\n")
    assert told in again.stderr
    assert "1" in (await invoke("show", "old", "--versions")).stdout
    (folder / "old.yaml").write_text(INNER.replace("inner", "old").replace('"1"', '"2"'))
    assert "stored and the latest" in (await invoke("apply", str(folder / "old.yaml"))).stdout
    (folder / "old.yaml").write_text(INNER.replace("inner", "old"))
    older = await invoke("apply", str(folder / "old.yaml"))
    assert "version 2 stays the latest" in older.stderr


async def test_the_server_names_what_this_machine_cannot_know(invoke: Invoke, folder: Path) -> None:
    (folder / "c.yaml").write_text(
        "dsl: penstock/1\nname: c\nversion: '1'\nsteps:\n"
        "  a: {run: {agent: assistent, message: '\"x\"'}}\n"
    )
    refused = await invoke("apply", str(folder / "c.yaml"))
    assert refused.exit_code == 2
    assert refused.stderr.splitlines() == [
        f"{folder / 'c.yaml'}:5:20: steps.a.run.agent: "
        'there is no agent assistent: did you mean "assistant"?'
    ]


def local(*words: str) -> Result:
    return CliRunner().invoke(app, ["workflow", *words], env={"COLUMNS": "200"})


async def test_files_are_checked_without_a_server(tmp_path: Path) -> None:
    good = local("check", str(EXAMPLES))
    assert good.exit_code == 0
    assert "code_review, version 1, has no mistakes" in good.stderr
    bad = tmp_path / "bad.yaml"
    bad.write_text("dsl: penstock/1\nname: b\nversion: 1\nsteps:\n  a: {set: nope, neds: [x]}\n")
    found = local("check", str(bad), str(tmp_path / "missing.yaml"))
    assert found.exit_code == 1
    assert found.stdout.splitlines() == [
        f'{bad}:3:10: version: must be a text: write "1" in quotes',
        f"{bad}:5:12: steps.a.set: undeclared reference to 'nope' (known here: input, now)",
        f"{bad}:5:18: steps.a.neds: there is no field 'neds': did you mean \"needs\"?",
        f"{tmp_path / 'missing.yaml'}: file: cannot be read: No such file or directory",
    ]
    as_json = local("check", str(bad), "--json")
    assert json.loads(as_json.stdout.splitlines()[0])["line"] == 3


async def test_with_a_configuration_the_agents_are_checked(tmp_path: Path) -> None:
    config = tmp_path / "penstock.yaml"
    agent = "{id: linter, protocol: agno, url: 'http://127.0.0.1:9'}"
    config.write_text(f"agents: [{agent}]\n")
    found = local("check", str(EXAMPLES / "code_review.yaml"), "--config", str(config))
    assert found.exit_code == 1
    assert "there is no agent scanner (agents: linter)" in found.stdout
    assert "linter:" not in found.stdout


async def test_a_graph_is_drawn_from_a_file() -> None:
    text = local("graph", str(EXAMPLES / "code_review.yaml")).stdout
    assert text.splitlines()[:3] == [
        "code_review 1",
        "  1. static_analysis  run linter",
        "  1. security_scan    run scanner; on failure continue",
    ]
    drawn = local("graph", str(EXAMPLES / "diagnosis.yaml"), "--mermaid").stdout
    assert drawn.splitlines()[:2] == ["flowchart TD", '    s0["plan<br/>run global_supervisor"]']


TESTS = """\
workflow: hello.yaml
tests:
  a guest:
    input: {who: Ada}
    expect: {output: Hello Ada}
  nobody:
    input: {who: ""}
    expect: {output: Hello}
"""


async def test_tests_of_a_workflow_are_run_without_a_server(tmp_path: Path) -> None:
    steps = 'steps: {a: {set: "Hello ${input.who}"}}\noutput: a.output\n'
    (tmp_path / "hello.yaml").write_text(f'dsl: penstock/1\nname: hello\nversion: "1"\n{steps}')
    file = tmp_path / "hello.test.yaml"
    file.write_text(TESTS)
    found = local("test", str(tmp_path))
    assert found.exit_code == 1
    assert found.stdout == (f'{file}:8:22: tests.nobody.expect.output: is "Hello ", not "Hello"\n')
    assert found.stderr == f"{file}: a guest: passed\n"
    lines = [json.loads(line) for line in local("test", str(file), "--json").stdout.splitlines()]
    assert lines[0] == {"file": str(file), "test": "a guest", "passed": True}
    assert (lines[1]["test"], lines[1]["line"]) == ("nobody", 8)
    file.write_text(TESTS.replace("{output: Hello}", "{output: 'Hello '}"))
    assert local("test", str(file)).exit_code == 0
    # The file with tests is no definition of its folder.
    checked = local("check", str(tmp_path))
    assert (checked.exit_code, "hello.test.yaml" in checked.stderr) == (0, False)


async def test_files_that_cannot_be_tested_are_named(tmp_path: Path) -> None:
    assert local("test", str(tmp_path)).exit_code == 2
    file = tmp_path / "hello.test.yaml"
    file.write_text(TESTS)
    missing = local("test", str(file))
    assert missing.exit_code == 1
    told = f"{tmp_path / 'hello.yaml'}: file: cannot be read: No such file or directory\n"
    assert missing.stdout == told
    (tmp_path / "hello.yaml").write_text("dsl: penstock/1\nname: x\nversion: '1'\nsteps: {}\n")
    wrong = local("test", str(file))
    assert wrong.stdout.startswith(f"{tmp_path / 'hello.yaml'}:4:8: steps: must have at least 1")
    file.write_text("workflow: hello.yaml\ntest: {}\n")
    assert f"{file}:2:1: test: there is no field" in local("test", str(file)).stdout
