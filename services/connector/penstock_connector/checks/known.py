"""Recognizes which server answers at an address. The advice after a failed check names this
server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock.settings import ServerAgent
from penstock.validation import did_you_mean
from penstock_connector.checks.finding import Finding, listed
from penstock_connector.checks.probe import Answer, NotReached, Probe

KINDS: Final = ("agent", "team", "workflow")
# the name of a run's body in the OpenAPI documents of the official AG-UI packages
RUN_INPUT: Final = "RunAgentInput"


@dataclass(frozen=True, slots=True)
class AgentOs:
    """An Agno AgentOS, with the ids of each kind, and the paths of the AG-UI interfaces."""

    base: str
    ids: dict[str, list[str]]
    agui: list[str]

    def __str__(self) -> str:
        had = [f"{kind}s: {listed(ids)}" for kind, ids in self.ids.items() if ids]
        return f"an Agno AgentOS ({'; '.join(had) or 'empty'}) answers at {self.base}"


@dataclass(frozen=True, slots=True)
class AdkServer:
    """An ADK server, with the server's URL and the names of the apps."""

    base: str
    apps: list[str]

    def __str__(self) -> str:
        return f"an ADK server (apps: {listed(self.apps)}) answers at {self.base}"


def agent_os(answer: Answer, base: str) -> AgentOs | None:
    """Return the AgentOS that gave this answer to `GET /config`; None if another server gave it."""
    config = answer.json
    if not answer.is_success or not isinstance(config, dict):
        return None
    if not all(isinstance(config.get(f"{kind}s"), list) for kind in KINDS):
        return None
    ids = {kind: [_text(each, "id") for each in config[f"{kind}s"]] for kind in KINDS}
    interfaces = config.get("interfaces")
    routes = [
        _text(each, "route")
        for each in (interfaces if isinstance(interfaces, list) else [])
        if _text(each, "type") == "agui"
    ]
    return AgentOs(base, ids, [f"{route.rstrip('/')}/agui" for route in routes])


def adk_server(answer: Answer, base: str) -> AdkServer | None:
    """Return the ADK server that gave this answer to `GET /list-apps`; None if another gave it."""
    apps = answer.json
    if not answer.is_success or not isinstance(apps, list):
        return None
    return AdkServer(base, apps) if all(isinstance(app, str) for app in apps) else None


def agui_paths(document: Any) -> list[str]:
    """Return the paths in an OpenAPI document whose POST takes the body of an AG-UI run."""
    paths = document.get("paths") if isinstance(document, dict) else None
    return [
        path
        for path, methods in (paths.items() if isinstance(paths, dict) else ())
        if isinstance(methods, dict) and f"/{RUN_INPUT}" in str(_body(methods.get("post")))
    ]


async def what_answers(probe: Probe, agent: ServerAgent) -> str | None:
    """Return which server answers and what to change in the configuration; None if unknown."""
    try:
        for base in probe.bases:
            if (adk := adk_server(await probe.get(f"{base}/list-apps"), base)) is not None:
                return f"{adk}: {_changes(agent, 'adk', base, adk.apps)}"
            if (os := agent_os(await probe.get(f"{base}/config"), base)) is not None:
                if agent.protocol == "agui" and os.agui:
                    urls = listed(base + path for path in os.agui)
                    return f"{os}; its AG-UI endpoints are {urls}: set `url` to one of them"
                every = [name for ids in os.ids.values() for name in ids]
                return f"{os}: {_changes(agent, 'agno', base, every)}"
        if paths := agui_paths((await probe.get(f"{probe.origin}/openapi.json")).json):
            urls = listed(probe.origin + path for path in paths)
            return (
                f"AG-UI endpoints there are {urls}: set `protocol: agui` and `url` to one of them"
            )
    except NotReached:
        return None
    return None


def _changes(agent: ServerAgent, protocol: str, base: str, known: list[str]) -> str:
    wanted = [f"`protocol: {protocol}`"] * (agent.protocol != protocol)
    wanted += [f"`url: {base}`"] * (agent.url.rstrip("/") != base)
    if agent.agent not in known:
        guess = did_you_mean(agent.agent, known)
        wanted.append(f"`agent` to one of them (it is {agent.agent}{guess})")
    return "set " + " and ".join(wanted)


def refusal_of(answer: Answer, agent: ServerAgent) -> Finding | None:
    """Return the finding if the server refuses the agent's credentials."""
    if not answer.is_refused:
        return None
    sent = ", ".join(agent.headers) or "none are"
    return Finding(
        agent.id,
        "refused",
        f"{answer}. Set the headers that it wants under `headers` ({sent} set)",
    )


def _body(operation: Any) -> Any:
    return operation.get("requestBody") if isinstance(operation, dict) else None


def _text(value: Any, name: str) -> str:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
