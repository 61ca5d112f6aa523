"""Starts the first runs of the demo, so that the console opens on runs that move."""

from __future__ import annotations

import sys
from typing import Final

import httpx

# A text, a run that asks a person, and a workflow, which asks a person after its first steps.
FIRST_RUNS: Final = (
    ("assistant", "Tell me a slow story"),
    ("vana", "Please delete report.txt"),
    ("code_review", "+password = 1"),
)


async def start_first_runs(url: str, agents: set[str]) -> None:
    """Start a run of each of these agents, unless the data folder has runs already."""
    try:
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            listed = await client.get("/v1/runs", params={"limit": 1})
            if listed.raise_for_status().json()["runs"]:
                return
            for agent, message in FIRST_RUNS:
                if agent in agents:
                    body = {"agent": agent, "message": message}
                    (await client.post("/v1/runs", json=body)).raise_for_status()
    except httpx.HTTPError as error:  # the demo is of use without them
        print(f"penstock: the demo's first runs: {error}", file=sys.stderr, flush=True)
