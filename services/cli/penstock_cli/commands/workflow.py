"""`penstock workflow`: the definitions of workflows, and their starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock_cli.commands.options import (
    AsJson,
    Input,
    Limit,
    Session,
    Tags,
    Url,
    Wait,
    YesOrNo,
    client,
    configuration,
    connected,
)
from penstock_cli.commands.runs import Follower, answer_of
from penstock_cli.terminal.api import Api, exit_code
from penstock_cli.terminal.output import Output, Record
from penstock_client import DEFAULT_URL, ApiError, path_of

if TYPE_CHECKING:
    from penstock_cli.local.definitions import Checked

app = typer.Typer(
    help="List, check, test, draw, store and run workflows.", invoke_without_command=True
)

Name = Annotated[str, typer.Argument(help="The workflow's name, see `penstock workflow list`.")]
Files = Annotated[
    list[Path], typer.Argument(help="Files with definitions, or folders with such files.")
]
Version = Annotated[str | None, typer.Option(help="The version. Default: the latest one.")]


@app.command("check")
def check(
    files: Files,
    config: Annotated[
        Path | None,
        typer.Option(help="The configuration file, whose agents the steps may name."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check definitions without a server. Each mistake is shown with file:line:column.

    With --config, also check that the configuration has the agents that the steps name.
    """
    from penstock_cli.local import definitions  # noqa: PLC0415 - needs the definition package

    output = Output(as_json)
    with configuration(output):
        agents = definitions.agents_of(config) if config is not None else None
    raise typer.Exit(_show_checked(output, definitions.check(files, agents)))


@app.command("test")
def run_tests(
    files: Annotated[
        list[Path],
        typer.Argument(help="Files with tests, or folders with files such as flow.test.yaml."),
    ],
    as_json: AsJson = False,
) -> None:
    """Run tests of workflows without a server: the steps get the answers that a test has.

    The exit code is 0 if all tests pass, 1 if one does not, and 2 if there are none.
    """
    from penstock_cli.local import workflow_tests  # noqa: PLC0415 - needs the engine

    output = Output(as_json)
    found = list(workflow_tests.run(files))
    for each in found:
        about = {"file": str(each.path), "test": each.test}
        for problem in each.problems:
            output.result({**about, **problem}, _line(each.path, problem))
        if not each.problems and as_json:
            output.json_line({**about, "passed": True})
        elif not each.problems:
            output.notice(f"{each.path}: {each.test}: passed")
    if not found:
        output.notice("penstock: there are no files with tests, such as flow.test.yaml")
        raise typer.Exit(2)
    raise typer.Exit(1 if any(each.problems for each in found) else 0)


@app.command("graph")
def graph(
    workflow: Annotated[str, typer.Argument(help="A file, or the name of a stored workflow.")],
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Write a Mermaid flowchart instead of text.")
    ] = False,
    version: Version = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Draw the steps of a workflow. Steps with the same number can run at the same time."""
    from penstock_cli.local import definitions  # noqa: PLC0415 - needs the definition package

    output = Output(as_json=False)
    if Path(workflow).exists():
        found = definitions.check([Path(workflow)], None)
        if any(each.problems for each in found) or len(found) != 1:
            raise typer.Exit(_show_checked(output, found) or 2)
        definition = found[0].value
    else:
        with connected(url, as_json=False) as (api, output):
            definition = _version(api, workflow, version)["definition"]
    output.text(definitions.drawn(definition, as_mermaid=mermaid))


@app.command("apply")
@client
def apply(api: Api, output: Output, files: Files) -> int:
    """Store definitions.

    Each stored version becomes the latest version. A repeat changes nothing.
    """
    from penstock_cli.local import definitions  # noqa: PLC0415 - needs the definition package

    found = definitions.in_order(definitions.check(files, None))
    if any(each.problems for each in found):
        return _show_checked(output, found)
    # If the service refuses a definition, the definitions after it are not stored.
    return next((code for each in found if (code := _store(api, output, each))), 0)


@app.command("run")
@client
def run(
    api: Api,
    output: Output,
    name: Name,
    message: Annotated[
        str, typer.Argument(help="A message: the steps see it as input.message.")
    ] = "",
    value: Input = None,
    version: Version = None,
    session: Session = None,
    answer: YesOrNo = None,
    wait: Wait = None,
    tags: Tags = None,
) -> int:
    """Start a workflow, and follow it with the runs of its steps.

    Ctrl-C ends only this command; the run continues.
    """
    wait = output.is_interactive if wait is None else wait
    follower = Follower(api, output, answer=answer_of(answer, output), wait=wait, children=True)
    more = {"input": value, "version": version, "session_id": session}
    more["tags"] = dict(tags) if tags else None
    body: dict[str, Any] = {"message": message}
    body |= {key: each for key, each in more.items() if each is not None}
    return follower.follow(api.start_with(_path(name, "runs"), body)["run_id"])


@app.command("list")
@app.callback()
@client
def list_workflows(
    api: Api,
    output: Output,
    limit: Limit = 100,
) -> None:
    """List the workflows that are stored."""
    found, more = api.pages(path_of("workflows"), "workflows", "after", limit, {}, most=500)
    columns = ("workflow", "latest", "topology", "since", "title")
    output.listing(found, columns, _row_of_workflow, more=more)


@app.command("show")
@client
def show(
    api: Api,
    output: Output,
    name: Name,
    version: Version = None,
    versions: Annotated[
        bool, typer.Option("--versions", help="List the versions instead.")
    ] = False,
) -> None:
    """Show the definition of a workflow as YAML."""
    if versions:
        found = api.call("GET", _path(name, "versions"))["versions"]
        columns = ("version", "", "created", "by", "digest")
        output.listing(found, columns, _row_of_version)
        return
    record = _version(api, name, version)
    if output.as_json:
        output.json_line(record)
        return
    import yaml  # noqa: PLC0415 - the other commands start faster without it

    definition = record["definition"]
    output.text(yaml.safe_dump(definition, sort_keys=False, allow_unicode=True, width=100).rstrip())


@app.command("retire")
@client
def retire(api: Api, output: Output, name: Name) -> None:
    """Retire a workflow.

    A retired workflow cannot be started, but its versions and its runs stay.
    """
    api.call("DELETE", _path(name))
    output.notice(f"{name} is retired; a new version makes it available again")


def _path(*segments: str) -> str:
    return path_of("workflows", *segments)


def _version(api: Api, name: str, version: str | None) -> Record:
    return api.call("GET", _path(name, *(("versions", version) if version is not None else ())))


def _show_checked(output: Output, files: Sequence[Checked]) -> int:
    """Show the mistakes of files as file:line:column; return the exit code."""
    for each in files:
        for problem in each.problems:
            output.result({"file": str(each.path), **problem}, _line(each.path, problem))
        if not each.problems and not output.as_json:
            name, version = each.value["name"], each.value["version"]
            output.notice(f"{each.path}: {name}, version {version}, has no mistakes")
    return 1 if any(each.problems for each in files) else 0


def _store(api: Api, output: Output, file: Checked) -> int:
    name, version = file.value["name"], file.value["version"]
    try:
        stored = api.call("PUT", _path(name, "versions", version), yaml=file.content)
    except ApiError as error:
        for problem in error.errors:  # the error's text is made of these problems
            output.notice(_line(file.path, problem))
        if not error.errors:
            output.notice(f"penstock: {file.path}: {error}")
        return exit_code(error)
    if output.as_json:
        output.json_line(stored)
    else:
        latest = " and the latest" if stored.get("is_latest") else ""
        output.text(f"{name}: version {version} is stored{latest}")
        if not latest:
            output.notice(f"penstock: {file.path}: {_no_latest(api, name)}")
    return 0


def _no_latest(api: Api, name: str) -> str:
    """Return why a version that was just stored is not the latest one: another is, or none."""
    try:
        latest = _version(api, name, None)["version"]
    except ApiError as error:
        return str(error)
    return f"version {latest} stays the latest; a new version would become the latest"


def _line(path: Path, problem: Record) -> str:
    place = "".join(f":{problem[name]}" for name in ("line", "column") if name in problem)
    return f"{path}{place}: {problem['field']}: {problem['message']}"


def _row_of_workflow(found: Record) -> tuple[object, ...]:
    topology = "" if found["topology_id"] is None else found["topology_id"]
    title = found["title"] or found["description"]
    return found["name"], found["version"] or "retired", topology, found["updated_at"], title


def _row_of_version(found: Record) -> tuple[object, ...]:
    latest = "latest" if found["is_latest"] else ""
    about = (found["version"], latest, found["created_at"])
    return (*about, found["created_by"], found["digest"][:12])
