"""The servers that are compared, each with its environment, its command and its own design."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from support.drive.repository import ROOT

VENVS: Final = ROOT / ".penstock" / "venvs"
PATIENCE_S: Final = 15.0  # that most runs have after a restart
Protocol = Literal["adk", "agno", "agui", "langgraph", "penstock"]


@dataclass(frozen=True, slots=True)
class Beside:
    """A server that runs beside the one that is killed, and is not killed."""

    command: str
    ready: str
    environment: str = ""


@dataclass(frozen=True, slots=True)
class Rival:
    """One row. Commands are of a shell, with the placeholders of `compare.commands`.

    `design` says how the server's own design explains its figures.
    """

    id: str
    name: str
    packages: tuple[str, ...]  # whose versions are shown
    environment: str  # in .penstock/venvs, from deploy/upstreams
    command: str
    protocol: Protocol
    design: str
    agent: str = "scripted"
    ready: str = "/"
    goes_on: bool = False
    patience_s: float = PATIENCE_S  # that a run has after a restart
    beside: Beside | None = None
    url_of_beside: bool = False  # whether the clients use the server beside
    programs: tuple[str, ...] = ()  # that it needs on the PATH
    conformance: tuple[str, ...] = ()  # of penstock-conformance, where it knows the protocol
    kept: str = ""  # how its design explains which statements it keeps


_AGNO: Final = "AGENT_DATA={data} PYTHONPATH={agents} {bin}/uvicorn agno_app:app --port {port}"
_ADK: Final = (
    "PYTHONPATH={agents} {bin}/adk api_server --port {port} "
    "--session_service_uri sqlite:///{data}/adk.sqlite --artifact_service_uri memory:// "
    "{agents}/adk"
)
_PENSTOCK: Final = (
    "{penstock} up --config {config} --port {port} --probe-port 0 --data {data}/penstock"
)
_AEGRA: Final = (
    "cd {data} && cp -R {agents}/graphs/. . && PYTHONPATH={agents} "
    "DATABASE_URL=postgresql://postgres@127.0.0.1:{database_port}/postgres "
    "AEGRA_CONFIG=aegra.json {bin}/aegra serve --host 127.0.0.1 --port {port}"
)
_POSTGRES: Final = "{bin}/python {here}/database.py {database_port} {beside_port}"
_AGNO_DESIGN: Final = (
    "A background run is a task of the process, and its events are buffered in memory. The "
    "database gets the run's state at certain points, so a run whose process was killed stays "
    "RUNNING there."
)

RIVALS: Final = (
    Rival(
        id="penstock",
        name="Penstock, in front of AgentOS",
        packages=("agno",),
        environment="agno",
        command=_PENSTOCK,
        protocol="penstock",
        ready="/v1/agents",
        conformance=(
            *("--protocol", "agui", "--path", "/agui/scripted"),
            *("--cancel", "/v1/runs/{penstock-run-id}/cancel"),
            *("--resume", "/agui/scripted/threads/{session}/events?until=idle&protocolVersion=1.0"),
        ),
        beside=Beside(
            "PENSTOCK_CHAOS_COUNTER=http://127.0.0.1:{counter_port} "
            + _AGNO.replace("{port}", "{beside_port}").replace("{data}", "{data}/beside"),
            "/health",
            "agno",
        ),
        design=(
            "All services and NATS are killed; AgentOS lives on, and its background runs with it. "
            "Every frame is stored before it is shown. After the restart, the connector continues "
            "each run with AgentOS's `/resume`. A start goes to AgentOS at most once: where its "
            "outcome cannot be known, the run fails with `outcome_unknown`."
        ),
    ),
    Rival(
        id="penstock-agno-killed",
        name="the same, AgentOS is killed",
        packages=("agno",),
        environment="agno",
        command=_AGNO,
        protocol="penstock",
        ready="/health",
        beside=Beside(_PENSTOCK.replace("{port}", "{beside_port}"), "/v1/agents"),
        url_of_beside=True,
        design=(
            "AgentOS loses its runs, as below. Penstock tries `/resume` for some seconds, and then "
            "ends each run with `upstream_lost`. It starts nothing again."
        ),
    ),
    Rival(
        id="agno",
        name="Agno AgentOS",
        packages=("agno",),
        environment="agno",
        command=_AGNO,
        protocol="agno",
        ready="/health",
        conformance=("--protocol", "agno", "--agent", "scripted"),
        kept=(
            "AgentOS stores a cancel by the run's id, whether or not it knows the run, so that a "
            "cancel which overtakes its start counts, too."
        ),
        design=_AGNO_DESIGN,
    ),
    Rival(
        id="agno-go-on",
        name="Agno AgentOS, with `continue`",
        packages=("agno",),
        environment="agno",
        command=_AGNO,
        protocol="agno",
        ready="/health",
        goes_on=True,
        design=(
            f"{_AGNO_DESIGN} `continue` is documented to resume such a run from its last stored "
            "state. Here this state had no messages yet, so the model was asked without the user's "
            "message, which the scripted one refuses, as providers do; the run then ends as ERROR."
        ),
    ),
    Rival(
        id="adk",
        name="ADK `api_server`",
        packages=("google-adk",),
        environment="adk",
        command=_ADK,
        protocol="adk",
        ready="/list-apps",
        conformance=("--protocol", "adk", "--agent", "scripted"),
        kept=(
            "What is not shown is what ADK's API does not have: ids of frames, a request that "
            "reads a stream again, and one that cancels."
        ),
        design=(
            "ADK's API has sessions and no runs: an invocation belongs to its request, and ends "
            "with its connection. Each whole event is stored in the session; the pieces of a text "
            "before its end are not."
        ),
    ),
    Rival(
        id="adk-go-on",
        name="ADK `api_server`, a resumable app, resumed",
        packages=("google-adk",),
        environment="adk",
        command=_ADK,
        protocol="adk",
        agent="scripted_resumable",
        ready="/list-apps",
        goes_on=True,
        design=(
            "A resumable app goes on after the last stored event when a client sends the "
            "`invocationId`. ADK documents that a tool then runs at least once: a call without a "
            "stored result is made again. A turn of the model that was not whole is asked for "
            "again, so its words come again."
        ),
    ),
    Rival(
        id="pydantic-ai",
        name="pydantic-ai's AG-UI app",
        packages=("pydantic-ai-slim", "ag-ui-protocol"),
        environment="pydantic_ai",
        command="PYTHONPATH={agents} {bin}/uvicorn pydantic_ai_app:app --port {port}",
        protocol="agui",
        agent="agui",
        ready="/openapi.json",
        conformance=("--protocol", "agui", "--path", "/agui"),
        kept=(
            "The adapter keeps nothing between requests: an answer that is sent again is one more "
            "run with the same history, in which the tool runs again. An application that stores "
            "its threads can refuse it."
        ),
        design=(
            "The adapter carries out a run within its request and stores nothing, and AG-UI has no "
            "request that enters a run again."
        ),
    ),
    Rival(
        id="langgraph-agui",
        name="LangGraph's AG-UI adapter",
        packages=("ag-ui-langgraph", "langgraph", "ag-ui-protocol"),
        environment="langgraph",
        command="PYTHONPATH={agents} {bin}/uvicorn langgraph_app:app --port {port}",
        protocol="agui",
        agent="agui",
        ready="/openapi.json",
        conformance=("--protocol", "agui", "--path", "/agui"),
        kept=(
            "The adapter takes an answer to one interrupt for the answer to that of the thread, "
            "and hands any payload to the graph: this one takes a text for a no, after which a yes "
            "comes too late. In a trial by hand, `forwardedProps.command.resume`, the way from "
            "before AG-UI had interrupts, was taken, too."
        ),
        design=(
            "The adapter carries out a run within its request, and AG-UI has no request that "
            "enters a run again. The graph's checkpoints are in memory here; with a database, they "
            "outlive the process."
        ),
    ),
    Rival(
        id="langgraph",
        name="LangGraph's dev server",
        packages=("langgraph-api", "langgraph-cli", "langgraph"),
        environment="langgraph_dev",
        command=(
            "cd {data} && cp -R {agents}/graphs/. . && PYTHONPATH={agents} {bin}/langgraph dev "
            "--port {port} --no-browser --no-reload --n-jobs-per-worker 8"
        ),
        protocol="langgraph",
        ready="/ok",
        design=(
            "The development server keeps threads and runs in memory, and saves them to files "
            "every 10 s. After a kill, a run that began later is no longer known. A saved one is "
            "carried out again, with its effects and words. LangGraph's platform uses Postgres and "
            "Redis instead, and was not tried."
        ),
    ),
    Rival(
        id="aegra",
        name="aegra",
        packages=("aegra-api", "langgraph"),
        environment="aegra",
        command=_AEGRA,
        protocol="langgraph",
        ready="/health",
        beside=Beside(_POSTGRES, "/"),
        design=(
            "Postgres lives on, with the graph's checkpoints. Without Redis, a run is a task of "
            "the process: after a kill, it stays `running`."
        ),
    ),
    Rival(
        id="aegra-redis",
        name="aegra, with Redis",
        packages=("aegra-api", "langgraph"),
        environment="aegra",
        command=_AEGRA.replace(
            "DATABASE_URL",
            "REDIS_BROKER_ENABLED=true REDIS_URL=redis://127.0.0.1:{redis_port} DATABASE_URL",
        ),
        protocol="langgraph",
        ready="/health",
        patience_s=60.0,  # a lease has 30 s
        programs=("redis-server",),
        beside=Beside(
            "redis-server --port {redis_port} --save '' --dir {data}/beside & " + _POSTGRES, "/"
        ),
        design=(
            "Postgres and Redis live on. aegra documents that the lease of a run expires after "
            "30 s, after which another worker goes on from the last checkpoint. An effect after "
            "this checkpoint is carried out again, and the words of an unfinished turn come again."
        ),
    ),
)
