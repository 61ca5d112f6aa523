"""Logs why an agent's runs fail before they begin: the called address, and what to change.

Clients get neither the address nor the advice, because both describe the operator's network. An
agent's server is checked at most once a minute, however many runs of the agent fail.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

import httpx

from penstock.settings import ServerAgent
from penstock_connector.checks import check
from penstock_connector.checks.finding import one_line
from penstock_connector.legs.outcome import Outcome
from penstock_connector.secrets import without_secrets

log = logging.getLogger(__name__)

AGAIN_S: Final = 60.0  # the minimum number of seconds between two checks of the same agent's server
# The lowest HTTP status that reports an error inside the agent server. Such an error does not come
# from the agent's configuration, so the server is not checked.
_SERVER_ERROR: Final = 500


class Diagnosis:
    """Checks agent servers in the background, for all legs of a process."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._looked_at_s: dict[str, float] = {}
        self._looking: set[asyncio.Task[None]] = set()

    def after(self, run_id: str, agent: ServerAgent, url: str, outcome: Outcome) -> None:
        """Check the server in the background if the leg, which called `url`, ended before its
        stream."""
        reached = _has_answered(outcome)
        now_s = time.monotonic()
        if reached is None or now_s < self._looked_at_s.get(agent.id, -AGAIN_S) + AGAIN_S:
            return
        self._looked_at_s[agent.id] = now_s
        task = asyncio.create_task(self._check_server(run_id, agent, url, outcome, reached))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def stop(self) -> None:
        for task in self._looking:
            task.cancel()
        if self._looking:
            await asyncio.wait(self._looking)

    async def _check_server(
        self, run_id: str, agent: ServerAgent, url: str, outcome: Outcome, reached: bool
    ) -> None:
        advice = "start it, or set `url` to its address as seen from here"
        if reached:
            try:
                finding = await check(self._client, agent)
            except Exception:  # the check serves only the log, and must not fail the leg's task
                log.exception("run %s: the server of agent %s cannot be checked", run_id, agent.id)
                return
            is_right = "nothing in its configuration, which fits the server"
            advice = is_right if finding.is_fine else finding.text
        # If the server answered, its error may repeat the request, and the request contains the
        # user's message. So only the status of such an answer is logged.
        status = f"it answered {outcome.facts.get('status_code', 'no event stream')}"
        error = status if reached else outcome.facts.get("error", "")
        facts = without_secrets(agent, {"url": url, "error": error})
        log.warning(
            "run %s: agent %s was called at %s: %s. What to change: %s",
            run_id,
            agent.id,
            facts["url"],
            one_line(facts["error"]),
            advice,
        )


def _has_answered(outcome: Outcome) -> bool | None:
    """Return whether the server answered; None if the configuration cannot be the cause."""
    if outcome.code == "not_a_stream":
        return True
    if outcome.code == "upstream_http":
        return True if outcome.facts.get("status_code", 0) < _SERVER_ERROR else None
    return False if outcome.facts.get("retryable") else None
