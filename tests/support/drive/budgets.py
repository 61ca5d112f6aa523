"""Stores budgets in a running deployment."""

from __future__ import annotations

import re
from typing import Any

from penstock.budgets.admission import CurrentBudgets
from support.drive.bus import connected
from support.drive.waiting import eventually
from support.real.deployment import CONTENT_KEY, Deployment

FOLLOWERS = ("edge", "approvals", "workflows", "automations")


async def put_in_force(penstock: Deployment, *budgets: dict[str, Any]) -> None:
    """Replace the budgets, and wait until all services that read them have them."""
    async with connected(penstock.nats_url, content_keys=("none", CONTENT_KEY)) as bus:
        stored = CurrentBudgets(bus)
        await stored.load()
        version = stored.current.version + 1
        await stored.apply({"version": version, "budgets": [*budgets]}, "root")
    followers = [each for service in FOLLOWERS for each in penstock.of(service)]

    async def in_force() -> bool:
        for each in followers:
            text = (await penstock.http.get(f"{each.probes}/metrics")).text
            shown = re.search(r"^penstock_budgets_version\S* (\S+)$", text, re.MULTILINE)
            if shown is None or float(shown[1]) < version:
                return False
        return True

    await eventually(in_force, what="the budgets in all services")
