"""`penstock automations` against the real service."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from penstock_automations.rules.pushes import new_rule_id
from penstock_cli.main import app
from penstock_cli.terminal.rules_file import InvalidFile, read_rules
from support.drive.automations_api import ADMIN, USER, AutomationsApi, automations_api
from support.drive.waiting import eventually
from support.fakes.issuer import token
from support.fakes.receiver import SECRET, answers
from support.real.nats import NatsServer

Invoke = Callable[..., Awaitable[Result]]

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILE = """\
# what a newcomer writes
rules:
  - id: finished
    subjects: [lifecycle.completed]
    action:
      webhook:
        url: "{url}"
        secrets: ["${{HOOK_SECRET}}"]
  - id: tools
    subjects: [llm.tool_call]
    where: |
      event.data.tool == "delete"
        && event.sequence > 1
    action: {{webhook: {{url: "{url}"}}}}
"""


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("cli"), name="nats of the command line")
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(nats: NatsServer) -> AsyncIterator[AutomationsApi]:
    async with automations_api(nats.url, retry_delays_s=[]) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def api(served: AutomationsApi) -> AsyncIterator[AutomationsApi]:
    served.receiver.requests.clear()
    served.receiver.usual.clear()
    yield served
    for rule in (await served.ask("GET", "", ADMIN)).json()["automations"]:
        await served.ask("DELETE", f"/{rule['id']}", ADMIN)


@pytest.fixture
def penstock(api: AutomationsApi, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Return a function that runs `penstock automations` with these arguments, as Alice."""
    monkeypatch.setenv("PENSTOCK_TOKEN", token(sub="alice", scope=USER))
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    url = str(api.http.base_url)

    async def invoke(*arguments: str) -> Result:
        words = ["automations", *arguments, "--url", url]
        return await asyncio.to_thread(CliRunner().invoke, app, words)

    return invoke


def write(folder: Path, text: str) -> str:
    path = folder / "rules.yaml"
    path.write_text(text)
    return str(path)


async def test_a_file_is_applied_and_a_repeat_changes_nothing(
    penstock: Invoke, api: AutomationsApi, tmp_path: Path
) -> None:
    text = FILE.format(url=api.receiver.url())
    path = write(tmp_path, text)
    made = await penstock("apply", path)
    assert made.exit_code == 0, made.output
    first, second, secret = made.stdout.splitlines()
    assert (first, second) == ("finished: made", "tools: made")
    assert secret.startswith("whsec_"), "a secret that was made is shown"
    assert SECRET not in made.output
    again = await penstock("apply", path)
    assert again.stdout.splitlines() == ["finished: unchanged", "tools: unchanged"]
    write(tmp_path, text.replace("lifecycle.completed", "lifecycle.failed"))
    changed = await penstock("apply", path, "--json")
    lines = [json.loads(line) for line in changed.stdout.splitlines()]
    assert [(each["id"], each["outcome"], each["version"]) for each in lines] == [
        ("finished", "changed", 2),
        ("tools", "unchanged", 1),
    ]
    listed = await penstock("list")
    head, one, two = listed.stdout.splitlines()
    assert head.split()[:3] == ["rule", "state", "owner"]
    assert one.split()[:4] == ["finished", "on", "alice", "lifecycle.failed"]
    assert two.split()[:3] == ["tools", "on", "alice"]


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("[lifecycle.completed]", "[lifecycle.done]", ["4: finished: subjects.0: there are no"]),
        ("event.sequence", "evnt", ["13:12: tools: where: undeclared reference to 'evnt'"]),
        ("where: |", "where: 'nope'\n    name: |", ["11:13: tools: where: undeclared"]),
        ("https", "ftp", ["7: finished: action.webhook.url", "14: tools: action.webhook.url"]),
        ("${HOOK_SECRET}", "geheim", ["8: finished: action.webhook.secrets.0: a secret begins"]),
        ("    subjects: [llm", "    subject: [llm", ["10: tools: subject: there is no such field"]),
    ],
)
async def test_a_mistake_is_reported_with_its_line(
    penstock: Invoke, api: AutomationsApi, tmp_path: Path, old: str, new: str, lines: list[str]
) -> None:
    path = write(tmp_path, FILE.format(url="https://hook.example/x").replace(old, new))
    refused = await penstock("apply", path)
    assert refused.exit_code == 1
    shown = [each for each in refused.stderr.splitlines() if each.startswith(path)]
    for wanted in lines:
        assert any(each.startswith(f"{path}:{wanted}") for each in shown), shown
    assert "geheim" not in refused.output
    wrong = {each.split(": ")[1] for each in shown}
    applied = {"finished", "tools"} - wrong
    assert {line.partition(":")[0] for line in refused.stdout.splitlines()} >= applied


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rules: [", "1: not YAML"),
        ("rules:\n  - id: x\n  - {id: [}\n", "3: not YAML"),
        ("rule: []", "1: the file must have one key"),
        ("rules:\n  - id: a\n\n  - 7", "4: a rule is a mapping"),
        ("rules:\n  - id: a\n    name: ${NOPE}", "3: the variable NOPE is not set"),
        ("rules:\n  - id: a\n    owner: bob", "3: a rule that is applied belongs to the caller"),
        ("rules:\n  - id: a\n  - id: a", "3: the id a is used twice"),
    ],
)
async def test_a_file_that_is_none_is_refused(text: str, reason: str) -> None:
    try:
        _, [mistake] = read_rules(text, {})
    except InvalidFile as error:
        mistake = str(error)
    assert mistake.startswith(reason)


async def test_a_rule_is_shown_paused_resumed_rotated_and_deleted(
    penstock: Invoke, api: AutomationsApi
) -> None:
    await api.make("hook")
    assert "lifecycle.completed" in (await penstock("show", "hook")).stdout
    assert "it moves" in (await penstock("pause", "hook", "--reason", "it moves")).stdout
    assert (await penstock("list")).stdout.splitlines()[1].split()[1] == "paused"
    assert (await penstock("resume", "hook")).exit_code == 0
    rotated = await penstock("rotate", "hook")
    assert rotated.stdout.splitlines()[-1].startswith("whsec_")
    assert (await penstock("rotate", "hook")).exit_code == 1
    assert (await penstock("rotate", "hook", "--end")).exit_code == 0
    deleted = await penstock("delete", "hook")
    assert deleted.exit_code == 0
    assert deleted.stderr == "hook is deleted: 0 waiting deliveries fail\n"
    gone = await penstock("show", "hook")
    assert gone.exit_code == 2
    assert "there is no automation hook" in gone.stderr


async def test_a_rule_is_tried(penstock: Invoke, api: AutomationsApi) -> None:
    await api.completed()
    await api.make("hook")
    tested = await penstock("test", "hook")
    assert tested.exit_code == 0
    assert tested.stdout.startswith("delivered after ")
    api.receiver.usual["/hook"] = answers(500, "broken")
    failed = await penstock("test", "hook", "--json")
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["answer"] == "broken"
    dry = await penstock("dry-run", "hook", "--since", "1h")
    assert dry.stdout.splitlines()[0].endswith("events: 1 matched")


async def test_what_deliveries_wait_for_and_which_rules_endpoint_is_blocked_is_shown(
    penstock: Invoke, api: AutomationsApi
) -> None:
    await api.make("blocked", "llm.tool_call", webhook={"concurrency": 1})
    api.receiver.usual["/blocked"] = answers(503)
    run = await api.run()
    await run.open()
    for number in range(7):  # five failures open the breaker
        await run.tool(number)

    async def rows() -> list[str]:
        shown = await penstock("deliveries", "blocked", "--status", "waiting")
        found = [line for line in shown.stdout.splitlines() if "breaker, until 20" in line]
        return found if len(found) == 2 else []

    await eventually(rows, what="two deliveries that wait for the breaker")

    async def endpoint() -> str:
        shown = await penstock("endpoints")
        return shown.stdout if "open" in shown.stdout else ""

    head, row = (await eventually(endpoint, what="the open breaker")).splitlines()
    assert head.split()[:3] == ["endpoint", "rule", "state"]
    assert row.split()[1:3] == ["blocked", "open"]


async def test_deliveries_are_shown_and_made_again(penstock: Invoke, api: AutomationsApi) -> None:
    await api.make("hook")
    api.receiver.usual["/hook"] = answers(500, "broken")
    await api.completed()
    await api.completed()

    async def failed() -> list[str]:
        shown = await penstock("deliveries", "hook", "--status", "failed", "--json")
        ids = [json.loads(line)["id"] for line in shown.stdout.splitlines()]
        return ids if len(ids) == 2 else []

    ids = await eventually(failed, what="two failed deliveries")
    whole = await penstock("deliveries", "hook", ids[0])
    assert "attempt 1" in whole.stdout
    assert "broken" in whole.stdout
    api.receiver.usual.clear()
    one = await penstock("replay", "hook", ids[0])
    assert one.stdout == f"{ids[0]}: is made again\n"

    async def delivered() -> bool:
        shown = await penstock("deliveries", "hook", "--status", "delivered")
        return ids[0] in shown.stdout

    await eventually(delivered, what="the replay")
    later = await penstock("replay", "hook", "--all", "--since", "2099-01-01T00:00:00Z")
    assert later.stdout == "0 deliveries are made again\n"
    listed = await penstock("deliveries", "--since", "1h")
    assert all(id in listed.stdout for id in ids)
    rest = await penstock("replay", "--all", "--since", "1h")
    assert rest.stdout == "1 deliveries are made again\n"
    await api.receiver.count(4, "/hook")
    assert (await penstock("endpoints")).exit_code == 0
    unknown = await penstock("replay", "hook", "hook.nope.1")
    assert unknown.exit_code == 1
    assert "there is no delivery hook.nope.1" in unknown.stderr
    assert (await penstock("replay", "hook")).exit_code == 2
    ended = await penstock("retry-now", "hook", ids[0])
    assert ended.exit_code == 1
    assert "replay makes it again" in ended.stderr
    none = await penstock("retry-now", "hook", "--all", "--since", "1h")
    assert none.stdout == "0 deliveries are tried now\n"
    assert (await penstock("retry-now", "hook")).exit_code == 2


async def test_apply_with_prune_deletes_the_callers_rules_that_the_file_does_not_have(
    penstock: Invoke, api: AutomationsApi, tmp_path: Path
) -> None:
    await api.make("old")
    await api.make("of-bob", user="bob")
    push = new_rule_id("0192c0de-0000-7000-8000-000000000000")
    await api.make(push, payload="a2a")
    text = FILE.format(url=api.receiver.url())
    kept = await penstock("apply", write(tmp_path, text))
    assert "old" not in kept.output, "without --prune, other rules are not changed"
    wrong = await penstock("apply", write(tmp_path, text.replace("llm.tool_call", "x")), "--prune")
    assert wrong.exit_code == 1
    assert "no rule is deleted" in wrong.stderr
    none = await penstock("apply", write(tmp_path, "rules: []"), "--prune")
    assert none.exit_code == 2
    assert "--prune with a file without rules" in " ".join(re.split(r"[\s│]+", none.stderr))
    pruned = await penstock("apply", write(tmp_path, text), "--prune")
    assert pruned.exit_code == 0
    assert pruned.stdout.splitlines() == [
        "finished: unchanged",
        "tools: unchanged",
        "old: deleted, 0 waiting deliveries fail",
    ]
    left = (await api.ask("GET", "", ADMIN)).json()["automations"]
    assert [each["id"] for each in left] == [push, "finished", "of-bob", "tools"]


async def test_an_administrators_prune_deletes_no_rule_of_another_user(
    penstock: Invoke, api: AutomationsApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FILE.format(url=api.receiver.url())
    for id_ in ("of-bob", "tools"):  # one that the file changes, and one that it lacks
        await api.make(id_, user="bob")
    monkeypatch.setenv("PENSTOCK_TOKEN", token(sub="alice", scope=f"{USER} administer act-as"))
    pruned = await penstock("apply", write(tmp_path, text), "--prune")
    assert (pruned.exit_code, "tools: changed" in pruned.stdout) == (0, True)
    assert (await api.ask("GET", "/of-bob", ADMIN)).status_code == 200


async def test_a_change_of_a_file_is_tried_and_a_new_rule_backfilled(
    penstock: Invoke, api: AutomationsApi, tmp_path: Path
) -> None:
    since = api.bus.clock.stamp()
    for _ in range(3):
        await api.completed()
    text = FILE.format(url=api.receiver.url("/finished"))
    path = write(tmp_path, text)
    tried = await penstock("dry-run", "finished", "--since", since, "--file", path)
    assert tried.stdout.splitlines()[0] == "3 events: 3 matched"
    assert (await api.ask("GET", "/finished")).status_code == 404
    unknown = await penstock("dry-run", "nope", "--file", path)
    assert (unknown.exit_code, "has no rule nope" in unknown.stderr) == (2, True)
    wrong = write(tmp_path, text.replace("[lifecycle.completed]", "[lifecycle.complete]"))
    refused = await penstock("dry-run", "finished", "--since", since, "--file", wrong)
    assert refused.exit_code == 2
    assert f"{wrong}:4: finished: subjects.0: there are no events" in refused.stderr
    assert (await penstock("apply", write(tmp_path, text))).exit_code == 0
    for _ in range(2):
        filled = await penstock("backfill", "finished", "--since", since)
        assert filled.stdout == "3 events: 3 matched\n"
    await api.receiver.count(3, "/finished")
