"""Run Agno's own client against a server that claims to be Agno; report the client's results.

Each line of stdin requests one action: `[URL, KIND, ID, ACTION, MESSAGE]`. The line of stdout that
answers it is `{"steps": [...]}`; a step is a list of events, or one run output. If the client
raises, the line is `{"error": "<traceback>"}`. Actions: run, stream, cancel, confirm, reject,
confirm-run, name.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from typing import Any

from agno.agent import RemoteAgent
from agno.team import RemoteTeam
from agno.workflow import RemoteWorkflow

REMOTES = {"agents": RemoteAgent, "teams": RemoteTeam, "workflows": RemoteWorkflow}
SESSION = "session_id"


def told(event: Any) -> dict[str, Any]:
    return {"class": type(event).__name__, **json.loads(json.dumps(event.to_dict(), default=str))}


async def listed(stream: Any) -> list[dict[str, Any]]:
    return [told(event) async for event in stream]


async def paused_of(stream: Any) -> tuple[list[dict[str, Any]], Any]:
    events = [event async for event in stream]
    return [told(event) for event in events], events[-1]


def answer(paused: Any, yes: bool) -> list[Any]:
    requirements = getattr(paused, "active_requirements", None) or paused.requirements
    for requirement in requirements:
        requirement.confirm() if yes else requirement.reject("not today")
    return requirements


async def steps(remote: Any, action: str, message: str) -> list[Any]:
    match action:
        case "name":
            return [remote.name]
        case "run":
            return [told(await remote.arun(message, user_id="u1"))]
        case "stream":
            return [await listed(remote.arun(message, stream=True, user_id="u1"))]
        case "cancel":
            events: list[dict[str, Any]] = []
            is_cancelled = False
            async for event in remote.arun(message, stream=True):
                events.append(told(event))
                # Pieces that were sent before the run ended are still read. A second cancel would
                # be a 409.
                if event.event.endswith("RunContent") and event.content and not is_cancelled:
                    assert await remote.acancel_run(event.run_id)
                    is_cancelled = True
            return [events]
        case "confirm" | "reject":
            first, paused = await paused_of(remote.arun(message, stream=True))
            goes_on = remote.acontinue_run(
                run_id=paused.run_id,
                session_id=paused.session_id,
                requirements=answer(paused, action == "confirm"),
                stream=True,
            )
            return [first, await listed(goes_on)]
        case "confirm-run":
            run = await remote.arun(message)
            done = await remote.acontinue_run(
                run_id=run.run_id, session_id=run.session_id, requirements=answer(run, True)
            )
            return [told(run), told(done)]
    raise ValueError(f"no action {action}")


async def answered(line: str) -> dict[str, Any]:
    url, kind, id, action, message = json.loads(line)
    try:
        return {"steps": await steps(REMOTES[kind](url, id), action, message)}
    except Exception:
        return {"error": traceback.format_exc()}


async def main() -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await answered(line)), flush=True)


asyncio.run(main())
