"""Checks the servers of each protocol.

- ADK: `GET /list-apps` lists the apps. Only a run shows whether an app loads.
- Agno: `GET /config` lists the agents, teams and workflows.
- AG-UI has only one request: a POST to one URL, which starts a run. So the check sends a GET to
  this URL. An AG-UI server answers a GET with 405; a server that knows no GET at all answers 501.
  If the server publishes an OpenAPI document, the check reads there which body the POST takes.
"""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

from penstock.settings import ServerAgent
from penstock.validation import did_you_mean
from penstock_connector.checks.finding import Finding, listed
from penstock_connector.checks.known import (
    adk_server,
    agent_os,
    agui_paths,
    refusal_of,
    what_answers,
)
from penstock_connector.checks.probe import Answer, NotReached, Probe

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NOT_ALLOWED = 405
_NOT_IMPLEMENTED = 501


async def check_adk(probe: Probe, agent: ServerAgent) -> Finding:
    answer = await probe.get(f"{probe.url}/list-apps")
    found = adk_server(answer, probe.url)
    if found is None:
        if (refused := refusal_of(answer, agent)) is not None:
            return refused
        instead = await what_answers(probe, agent)
        text = instead or f"{answer}, which no ADK server says: check `url` and `protocol`"
        return Finding(agent.id, "wrong_protocol", text)
    if agent.agent in found.apps:
        return Finding(
            agent.id, "ok", f"{probe.url} is an ADK server and has the app {agent.agent}"
        )
    return Finding(
        agent.id,
        "wrong_agent",
        f"the ADK server at {probe.url} has no app {agent.agent}"
        f"{did_you_mean(agent.agent, found.apps)} (apps: {listed(found.apps)}): "
        "set `agent` to one of them",
    )


async def check_agno(probe: Probe, agent: ServerAgent) -> Finding:
    answer = await probe.get(f"{probe.url}/config")
    found = agent_os(answer, probe.url)
    if found is None:
        if (refused := refusal_of(answer, agent)) is not None:
            return refused
        instead = await what_answers(probe, agent)
        text = instead or f"{answer}, which no Agno AgentOS says: check `url` and `protocol`"
        return Finding(agent.id, "wrong_protocol", text)
    ids = found.ids[agent.kind]
    if agent.agent in ids:
        return Finding(
            agent.id, "ok", f"{probe.url} is an Agno AgentOS and has the {agent.kind} {agent.agent}"
        )
    has_none = f"the Agno AgentOS at {probe.url} has no {agent.kind} {agent.agent}"
    for kind, others in found.ids.items():
        if agent.agent in others:
            text = f"{has_none}, but a {kind} of that name: set `kind: {kind}`"
            return Finding(agent.id, "wrong_agent", text)
    guess = did_you_mean(agent.agent, ids)
    text = f"{has_none}{guess} ({agent.kind}s: {listed(ids)}): set `agent` to one of them"
    return Finding(agent.id, "wrong_agent", text)


async def check_agui(probe: Probe, agent: ServerAgent) -> Finding:
    answer = await probe.get(probe.url)
    paths = await _paths(probe)
    if any(_leads_to(path, probe.url) for path in paths):
        return Finding(agent.id, "ok", f"{probe.url} takes AG-UI runs")
    if (refused := refusal_of(answer, agent)) is not None:
        return refused
    if answer.status in _REDIRECTS:
        to = urljoin(probe.url, answer.headers.get("location", ""))
        text = f"{probe.url} redirects to {to}, and redirects are not followed: set `url: {to}`"
        return Finding(agent.id, "wrong_agent", text)
    others = listed(probe.origin + path for path in paths)
    # The OpenAPI document may not name this path, although an AG-UI endpoint is there.
    if _may_take_post(answer):
        more = f" (its OpenAPI document names {others})" if paths else ""
        says = "takes a POST" if answer.status == _NOT_ALLOWED else "takes no GET"
        text = f"{probe.url} {says}; whether it speaks AG-UI, only a run shows{more}"
        return Finding(agent.id, "unproven", text)
    if paths:
        text = f"{answer}: AG-UI runs are taken at {others}. Set `url` to one of them"
        return Finding(agent.id, "wrong_agent", text)
    text = await what_answers(probe, agent) or (
        f"{answer}, so that no run can be posted there: check the path of `url` (it is used "
        "exactly as it stands, also the slash at its end)"
    )
    return Finding(agent.id, "wrong_protocol", text)


def _leads_to(path: str, url: str) -> bool:
    """Return whether the URL has this path; a `{name}` in the path matches any segment."""
    pattern = re.sub(r"\\{[^/]*\\}", "[^/]+", re.escape(path))
    return re.fullmatch(pattern, urlsplit(url).path or "/") is not None


def _may_take_post(answer: Answer) -> bool:
    allowed = answer.headers.get("allow", "POST").upper()
    return answer.status in (_NOT_ALLOWED, _NOT_IMPLEMENTED) and "POST" in allowed


async def _paths(probe: Probe) -> list[str]:
    try:
        return agui_paths((await probe.get(f"{probe.origin}/openapi.json")).json)
    except NotReached:
        return []
