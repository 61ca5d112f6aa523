"""Makes the two rules of the demo.

One rule sends a webhook for each completed run. The other rule has a hook that starts runs.

The rules are written to a file in the data folder, as an operator would do. If the operator has a
file of rules (`PENSTOCK_RULES`), the demo makes no rules.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import yaml

from penstock.bus import Bus
from penstock.web.auth.identity import ANONYMOUS_USER
from penstock_automations.rules.secrets import new_secret
from penstock_automations.rules.store import RuleStore
from penstock_cli.demo.receiver import Receiver
from penstock_cli.local.secret_files import password, private_folder, write_private

RULES: Final = "PENSTOCK_RULES"
_ALLOWED: Final = "PENSTOCK_WEBHOOK_ALLOW_HOSTS"
COMPLETED, ASK = "demo-completed", "demo-ask"


class DemoRules:
    """The rules of the demo, with the receiver of the rules' webhooks."""

    def __init__(self, data: Path) -> None:
        self._folder = (data / "demo" / "rules").absolute()
        self._secret = new_secret()
        self._receiver = Receiver(self._secret, lambda text: print(text, flush=True))

    @property
    def token_file(self) -> Path:
        return self._folder / "hook-token"

    async def start(self) -> None:
        """Start the receiver, write the file of rules, and have the service read this file."""
        await self._receiver.start()
        private_folder(self._folder)
        file = self._folder / "rules.yaml"
        rules = rules_of(self._receiver.url, self._secret, password(self.token_file))
        write_private(file, yaml.safe_dump({"rules": rules}, sort_keys=False))
        os.environ[RULES] = str(file)
        allowed = os.environ.get(_ALLOWED, "")
        os.environ[_ALLOWED] = ",".join(filter(None, [allowed, "127.0.0.1"]))

    async def stop(self) -> None:
        await self._receiver.stop()


def are_wanted() -> bool:
    """Return whether the demo makes its rules: not if the operator has a file of rules."""
    return RULES not in os.environ


def rules_of(url: str, secret: str, token: str) -> list[dict[str, Any]]:
    return [
        {
            "id": COMPLETED,
            "name": "Demo: a webhook for each run that completes",
            "subjects": ["lifecycle.completed"],
            "action": {"webhook": {"url": url, "secrets": [secret]}},
        },
        {
            "id": ASK,
            "name": "Demo: a hook that starts a run",
            "hook": {"tokens": [token]},
            "action": {
                "run": {
                    "agent": "assistant",
                    "message": "What is the weather in {{ event.data.city }}?",
                }
            },
            "owner": ANONYMOUS_USER,
        },
    ]


async def forget(bus: Bus) -> None:
    """Delete the rules of an earlier demo, because the receiver of their webhooks has ended."""
    store = RuleStore(bus)
    for rule_id in (COMPLETED, ASK):
        found = await store.get(rule_id)
        if found is not None and found.record.source == "file":
            await store.delete(rule_id)
