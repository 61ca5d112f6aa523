"""`penstock run`, `events`, `cancel` and `runs`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from penstock_cli.commands.options import RunId, Wait, client
from penstock_cli.terminal import approvals, runs
from penstock_cli.terminal.api import Api
from penstock_cli.terminal.output import Output

app = typer.Typer(help="List runs, or show one.", invoke_without_command=True)


@client
def run(
    api: Api,
    output: Output,
    message: Annotated[str, typer.Argument(help="What to say to the agent.")],
    agent: Annotated[str, typer.Option(help="The agent's id, see `penstock agents`.")],
    session: Annotated[
        str | None, typer.Option(help="The id of a conversation to continue, or to begin.")
    ] = None,
    answer: Annotated[
        bool | None,
        typer.Option("--yes/--no", help="Approve, or reject, everything that is asked."),
    ] = None,
    wait: Wait = None,
) -> int:
    """Start a run and follow it. Ctrl-C ends only this command; the run continues."""
    wait = output.is_interactive if wait is None else wait
    follower = runs.Follower(api, output, answer=answer_of(answer, output), wait=wait)
    run_id = runs.start(api, agent, message, session)["run_id"]
    return follower.follow(run_id)


def answer_of(given: bool | None, output: Output) -> runs.Answer | None:
    """Return the function that answers approvals. The function gives the answer `given` to all
    approvals, or asks the person at the terminal. Return None if nobody can be asked."""
    if given is not None:
        return partial(approvals.decided, decision="approve" if given else "reject")
    return partial(approvals.ask, output) if output.is_interactive else None


@client
def events(
    api: Api,
    output: Output,
    run_id: RunId,
    dialect: Annotated[
        str,
        typer.Option(
            help="`canonical` is shown for reading; any other dialect is written as it comes."
        ),
    ] = "canonical",
    after: Annotated[
        str | None, typer.Option(help="The cursor (an SSE `id`) after which to continue.")
    ] = None,
) -> int:
    """Follow a run's events from its start, or from a cursor."""
    if dialect == "canonical":
        return runs.Follower(api, output).follow(run_id, after)
    runs.show_frames(api, output, run_id, dialect, after)
    return 0


@client
def cancel(api: Api, output: Output, run_id: RunId) -> None:
    """Stop a run."""
    output.record(api.cancel(run_id))


@app.command("list")
@app.callback()
@client
def list_runs(
    api: Api,
    output: Output,
    status: Annotated[
        str | None,
        typer.Option(help="queued, running, paused, completed, failed or cancelled."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Runs of this agent only.")] = None,
    parent: Annotated[
        str | None, typer.Option(help="The runs of the steps of this workflow's run only.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The largest number of runs.")] = 20,
) -> None:
    """List runs, the newest first."""
    runs.show_list(api, output, limit, status=status, agent=agent, parent_run_id=parent)


@app.command("show")
@client
def show_run(api: Api, output: Output, run_id: RunId) -> None:
    """Show one run. For a workflow's run that has not ended, show the open steps, too."""
    runs.show_one(api, output, run_id)
