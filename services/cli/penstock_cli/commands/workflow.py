"""`penstock workflow`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock_cli.commands.options import AsJson, Url, Wait, configuration, connected
from penstock_cli.commands.runs import answer_of
from penstock_cli.terminal import runs, workflows
from penstock_cli.terminal.api import DEFAULT_URL
from penstock_cli.terminal.output import Output
from penstock_cli.terminal.workflows_api import WorkflowsApi

app = typer.Typer(help="List, check, draw, store and run workflows.", invoke_without_command=True)

Name = Annotated[str, typer.Argument(help="The workflow's name, see `penstock workflow list`.")]
Files = Annotated[
    list[Path], typer.Argument(help="Files with definitions, or folders with such files.")
]
Version = Annotated[str | None, typer.Option(help="The version. Default: the latest one.")]


@app.command("validate")
def validate(
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
    raise typer.Exit(workflows.checked(output, definitions.check(files, agents)))


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
            raise typer.Exit(workflows.checked(output, found) or 2)
        definition = found[0].value
    else:
        with connected(url, as_json=False) as (api, output):
            definition = WorkflowsApi(api).show(workflow, version)["definition"]
    output.text(definitions.drawn(definition, as_mermaid=mermaid))


@app.command("apply")
def apply(files: Files, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Store definitions.

    Each stored version becomes the latest version. A repeat changes nothing.
    """
    from penstock_cli.local import definitions  # noqa: PLC0415 - needs the definition package

    found = definitions.in_order(definitions.check(files, None))
    if any(each.problems for each in found):
        raise typer.Exit(workflows.checked(Output(as_json), found))
    with connected(url, as_json) as (api, output):
        raise typer.Exit(workflows.apply(WorkflowsApi(api), output, found))


@app.command("run")
def run(
    name: Name,
    message: Annotated[
        str, typer.Argument(help="A message: the steps see it as input.message.")
    ] = "",
    given: Annotated[
        str | None,
        typer.Option("--input", help="The input, a JSON object; @FILE reads a file, - the input."),
    ] = None,
    version: Version = None,
    session: Annotated[
        str | None, typer.Option(help="The id of a session to continue, or to begin.")
    ] = None,
    answer: Annotated[
        bool | None,
        typer.Option("--yes/--no", help="Approve, or reject, everything that is asked."),
    ] = None,
    wait: Wait = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Start a workflow, and follow it with the runs of its steps.

    Ctrl-C ends only this command; the run continues.
    """
    try:
        input = workflows.read_input(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--input") from None
    with connected(url, as_json) as (api, output):
        wait = output.is_interactive if wait is None else wait
        follower = runs.Follower(
            api, output, answer=answer_of(answer, output), wait=wait, children=True
        )
        body: dict[str, Any] = {"message": message}
        body |= {"input": input} if input is not None else {}
        body |= {"version": version} if version is not None else {}
        body |= {"session_id": session} if session is not None else {}
        run_id = WorkflowsApi(api).start(name, body)["run_id"]
        raise typer.Exit(follower.follow(run_id))


@app.command("list")
@app.callback()
def list_workflows(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="The largest number that is shown.")] = 100,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the workflows that are stored."""
    if context.invoked_subcommand is None:
        with connected(url, as_json) as (api, output):
            workflows.show_list(output, *WorkflowsApi(api).workflows(limit))


@app.command("show")
def show(
    name: Name,
    version: Version = None,
    versions: Annotated[
        bool, typer.Option("--versions", help="List the versions instead.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the definition of a workflow as YAML."""
    with connected(url, as_json) as (api, output):
        if versions:
            workflows.show_versions(output, WorkflowsApi(api).versions(name))
        else:
            workflows.show(output, WorkflowsApi(api).show(name, version))


@app.command("retire")
def retire(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Retire a workflow.

    A retired workflow cannot be started, but its versions and its runs stay.
    """
    with connected(url, as_json) as (api, output):
        WorkflowsApi(api).retire(name)
        output.notice(f"{name} is retired; a new version makes it available again")
