"""The command line. Each command says what it takes, and leaves the work to its module.

Exit codes: 0 completed, 1 failed (or refused: it was too late), 2 usage or nothing answers,
3 cancelled, 4 waits for an approval, 130 Ctrl-C.
"""

# A command's options are its parameters.

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from penstock.settings import ConfigurationError
from penstock_cli import agents, approvals, deadletters, runs, streams
from penstock_cli.client import DEFAULT_URL, Api, CallFailed
from penstock_cli.embedded_nats import check_sync_interval
from penstock_cli.output import Output

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
deadletters_app = typer.Typer(
    help="What could not be processed. Speaks with NATS, as the services do.", no_args_is_help=True
)
runs_app = typer.Typer(help="List runs, or show one.", invoke_without_command=True)
approvals_app = typer.Typer(help="What waits for a decision.", no_args_is_help=True)
app.add_typer(runs_app, name="runs")
app.add_typer(approvals_app, name="approvals")
app.add_typer(deadletters_app, name="deadletters")
agents_app = typer.Typer(help="List agents, or check their servers.", invoke_without_command=True)
app.add_typer(agents_app, name="agents")
streams_app = typer.Typer(
    help="How the streams are kept. Speaks with NATS, as the services do.", no_args_is_help=True
)
app.add_typer(streams_app, name="streams")

Url = Annotated[str, typer.Option("--url", envvar="PENSTOCK_URL", help="Where Penstock is.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, one object a line.")]
RunId = Annotated[str, typer.Argument(help="The run's id.")]
ApprovalId = Annotated[str, typer.Argument(help="The approval's id.")]
Nats = Annotated[
    str | None,
    typer.Option("--nats", help="The NATS server (PENSTOCK_NATS_URL, or that of --data)."),
]
Data = Annotated[Path, typer.Option("--data", help="The folder of a `penstock up`.")]
DATA = Path(".penstock")
AgentsFile = Annotated[Path | None, typer.Option("--config", help="The agents' file.")]
Numbers = Annotated[list[int] | None, typer.Argument(help="The letters' numbers.")]
All = Annotated[bool, typer.Option("--all", help="All that match, in place of numbers.")]
OfService = Annotated[str | None, typer.Option("--service", help="Given up by this service only.")]
OfRun = Annotated[str | None, typer.Option("--run", help="Of this run only.")]
Since = Annotated[str | None, typer.Option("--since", help="15m, 2h or 3d ago, or a time.")]
Note = Annotated[str | None, typer.Option("--note", help="Why; the agent is told.")]


def _show_version(asked: bool) -> None:
    if asked:
        print(f"penstock {version('penstock-cli')}")
        raise typer.Exit


@app.callback()
def penstock(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """The event streams of AI agents, over NATS JetStream."""


@contextmanager
def _connected(url: str, as_json: bool) -> Iterator[tuple[Api, Output]]:
    output = Output(as_json)
    try:
        # no option: what is on a command line, other users of the machine can read
        with Api(url, output.notice, os.environ.get("PENSTOCK_TOKEN")) as api:
            yield api, output
    except CallFailed as error:
        output.notice(f"penstock: {error}")
        raise typer.Exit(error.exit_code) from None


@contextmanager
def _configuration(output: Output) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        output.notice(f"penstock: {error}")
        raise typer.Exit(2) from None


def _sync_interval(text: str) -> str:
    try:
        return check_sync_interval(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def up(
    config: Annotated[Path | None, typer.Option(help="The agents' file (penstock.yaml).")] = None,
    host: Annotated[str | None, typer.Option(help="Where HTTP is served (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="HTTP port (8000).")] = None,
    probe_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of probes and metrics (9000).")
    ] = None,
    data: Annotated[Path, typer.Option(help="Where NATS and the logs live.")] = Path(".penstock"),
    nats: Annotated[
        str | None,
        typer.Option(envvar="PENSTOCK_NATS_URL", help="A NATS server, in place of our own."),
    ] = None,
    nats_sync: Annotated[
        str,
        typer.Option(
            envvar="PENSTOCK_NATS_SYNC",
            callback=_sync_interval,
            metavar="INTERVAL",
            help="How often our own NATS server writes through to the disk: `always` (before it "
            "acknowledges), or a time such as 500ms or 10s, whose events a power cut may lose.",
        ),
    ] = "always",
    nats_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port of our own NATS server (a free one)."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="With agents that need no key.")] = False,
) -> None:
    """Run every service in this process, until Ctrl-C."""
    from penstock_cli import up as composed  # noqa: PLC0415 - the client needs no service

    if nats is not None and nats_port is not None:
        raise typer.BadParameter("--nats-port is of the server that --nats replaces: leave one out")
    options = composed.Options(
        data=data,
        config=config,
        host=host,
        port=port,
        probe_port=probe_port,
        nats=nats,
        nats_sync=nats_sync,
        nats_port=nats_port,
        demo=demo,
    )
    raise typer.Exit(composed.up(options))


@app.command()
def run(
    message: Annotated[str, typer.Argument(help="What to say to the agent.")],
    agent: Annotated[str, typer.Option(help="Which agent, by its id in the configuration.")],
    session: Annotated[str | None, typer.Option(help="Go on with this conversation.")] = None,
    answer: Annotated[
        bool | None, typer.Option("--yes/--no", help="Approve, or reject, whatever is asked.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Go on following while others decide.")] = True,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Start a run and follow it; Ctrl-C leaves it running."""
    with _connected(url, as_json) as (api, output):
        follower = runs.Follower(api, output, answer=_answer(answer, output), wait=wait)
        run_id = api.start(agent, message, session)["run_id"]
        raise typer.Exit(follower.follow(run_id))


def _answer(given: bool | None, output: Output) -> runs.Answer | None:
    if given is not None:
        return partial(approvals.decided, decision="approve" if given else "reject")
    return partial(approvals.ask, output) if output.interactive else None


@app.command()
def events(
    run_id: RunId,
    dialect: Annotated[
        str, typer.Option(help="canonical is shown for reading, others as they are.")
    ] = "canonical",
    after: Annotated[str | None, typer.Option(help="The cursor to go on from.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Follow a run's events from its start, or from a cursor."""
    with _connected(url, as_json) as (api, output):
        if dialect == "canonical":
            raise typer.Exit(runs.Follower(api, output).follow(run_id, after))
        runs.show_frames(api, output, run_id, dialect, after)


@app.command()
def cancel(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Stop a run."""
    with _connected(url, as_json) as (api, output):
        runs.show(output, api.cancel(run_id))


@runs_app.callback()
def list_runs(
    context: typer.Context,
    status: Annotated[str | None, typer.Option(help="queued, running, paused, …")] = None,
    agent: Annotated[str | None, typer.Option(help="Of this agent only.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    if context.invoked_subcommand is None:
        with _connected(url, as_json) as (api, output):
            runs.show_list(api, output, status, agent, limit)


@runs_app.command("show")
def show_run(run_id: RunId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one run."""
    with _connected(url, as_json) as (api, output):
        runs.show(output, api.run(run_id))


@agents_app.callback()
def list_agents(
    context: typer.Context,
    config: AgentsFile = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the agents of the Penstock at --url, or with --config those of a file."""
    if context.invoked_subcommand is not None:
        return
    if config is None:
        with _connected(url, as_json) as (api, output):
            agents.show_list(api, output)
        return
    output = Output(as_json)
    with _configuration(output):
        agents.show_configured(output, agents.configured(config))


@agents_app.command("check")
def check_agents(
    ids: Annotated[list[str] | None, typer.Argument(help="These alone.")] = None,
    config: Annotated[
        Path, typer.Option(envvar="PENSTOCK_CONFIG", help="The agents' file.")
    ] = Path("penstock.yaml"),
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Of one request.")
    ] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Ask each agent's server from here whether it speaks the protocol and has the agent.

    It starts no run. Exit code 1 where something is wrong.
    """
    output = Output(as_json)
    with _configuration(output):
        asked = agents.chosen(agents.configured(config), ids or [])
        raise typer.Exit(agents.check(output, asked, timeout))


@approvals_app.command("list")
def list_approvals(
    status: Annotated[
        str | None, typer.Option(help="pending, decided, withdrawn, expired, or all.")
    ] = "pending",
    run: Annotated[str | None, typer.Option(help="Of this run only.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List what waits for a decision."""
    with _connected(url, as_json) as (api, output):
        approvals.show_list(api, output, None if status == "all" else status, run)


@approvals_app.command("show")
def show_approval(approval_id: ApprovalId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one approval."""
    with _connected(url, as_json) as (api, output):
        approvals.show(output, api.approval(approval_id))


@approvals_app.command("approve")
def approve(
    approval_id: ApprovalId,
    value: Annotated[
        list[str] | None, typer.Option(help="ITEM=VALUE (JSON or text), where one is asked for.")
    ] = None,
    reject: Annotated[
        list[str] | None, typer.Option(help="ITEM to reject, while the others are approved.")
    ] = None,
    note: Note = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Approve what it asks; the run goes on."""
    try:
        values = approvals.parse_values(value or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--value") from None
    with _connected(url, as_json) as (api, output):
        approval = api.approval(approval_id)
        items = approvals.decided(approval, "approve", values, rejected=reject or [])
        approvals.show(output, api.decide(approval, items, note))


@approvals_app.command("reject")
def reject(
    approval_id: ApprovalId, note: Note = None, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Reject all that it asks; the run goes on without."""
    with _connected(url, as_json) as (api, output):
        approval = api.approval(approval_id)
        approvals.show(output, api.decide(approval, approvals.decided(approval, "reject"), note))


@deadletters_app.command("list")
def list_deadletters(
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """List what could not be processed, the newest last."""
    output, which = Output(as_json), _which([], service, run, since)
    raise typer.Exit(
        deadletters.run(lambda bus: deadletters.show_list(bus, output, which), output, nats, data)
    )


@deadletters_app.command("show")
def show_deadletter(
    number: Annotated[int, typer.Argument(min=1, help="The letter's number.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Source frames too, which may hold secrets.")
    ] = False,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Show one letter: why, where it came from, its headers and payload."""
    output = Output(as_json)
    raise typer.Exit(
        deadletters.run(lambda bus: deadletters.show(bus, output, number, raw), output, nats, data)
    )


@deadletters_app.command("replay")
def replay_deadletters(
    numbers: Numbers = None,
    all_of_them: All = False,
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Put letters back where they came from; doing it again changes nothing."""
    output, which = Output(as_json), _which(_some(numbers, all_of_them), service, run, since)
    raise typer.Exit(
        deadletters.run(lambda bus: deadletters.replay(bus, output, which), output, nats, data)
    )


@deadletters_app.command("drop")
def drop_deadletters(
    numbers: Numbers = None,
    all_of_them: All = False,
    service: OfService = None,
    run: OfRun = None,
    since: Since = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Delete letters for good."""
    output, which = Output(as_json), _which(_some(numbers, all_of_them), service, run, since)
    raise typer.Exit(
        deadletters.run(lambda bus: deadletters.drop(bus, output, which, yes), output, nats, data)
    )


@streams_app.command("show")
def show_streams(nats: Nats = None, data: Data = DATA, as_json: AsJson = False) -> None:
    """Show every stream, and where it is kept otherwise than the environment's settings say."""
    output = Output(as_json)
    raise typer.Exit(deadletters.run(lambda bus: streams.show(bus, output), output, nats, data))


@streams_app.command("make")
def make_streams(nats: Nats = None, data: Data = DATA, as_json: AsJson = False) -> None:
    """Make the streams that are missing, and bring older ones forward: before the services start.

    Where services have NATS users of their own, these may not do it.
    """
    output = Output(as_json)
    work = deadletters.run(lambda bus: streams.make(bus, output), output, nats, data, first=True)
    raise typer.Exit(work)


@streams_app.command("migrate")
def migrate_streams(
    partitions: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Divide the runs into so many.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    nats: Nats = None,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Keep the streams as the environment's settings say, while runs go on."""
    output = Output(as_json)
    raise typer.Exit(
        deadletters.run(
            lambda bus: streams.bring_forward(bus, output, partitions, dry_run), output, nats, data
        )
    )


@app.command("token")
def make_token(
    user: Annotated[str, typer.Option(help="Whose runs it starts and reads (`sub`).")] = "me",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="start, read, raw, decide, act-as, administer; several by commas. Without any: "
            "what the services give to a token that names none.",
        ),
    ] = None,
    lifetime: Annotated[str, typer.Option(help="Like 15m, 2h or 3d.", metavar="TIME")] = "1d",
    as_json: AsJson = False,
) -> None:
    """Make a token for development, with PENSTOCK_AUTH_JWT_SECRET from the environment."""
    from penstock_cli import token  # noqa: PLC0415 - the client needs no cryptography

    try:
        lifetime_s = token.parse_lifetime(lifetime)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--lifetime") from None
    try:
        scopes = token.parse_scopes(scope or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--scope") from None
    output = Output(as_json)
    with _configuration(output):
        token.make(output, user, scopes, lifetime_s)


def _some(numbers: list[int] | None, all_of_them: bool) -> list[int]:
    if bool(numbers) == all_of_them:
        raise typer.BadParameter("name letters by their numbers, or say --all (not both)")
    return numbers or []


def _which(
    numbers: list[int], service: str | None, run: str | None, since: str | None
) -> deadletters.Which:
    if numbers and (service or run or since):
        raise typer.BadParameter("--service, --run and --since go with --all, not with numbers")
    for option, token in (("--service", service), ("--run", run)):
        if token is not None and not re.fullmatch(r"[\w-]+", token, re.ASCII):
            raise typer.BadParameter(f"{token!r} cannot be one", param_hint=option)
    try:
        time = deadletters.parse_since(since) if since is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    return deadletters.Which(numbers, service, run, time)
