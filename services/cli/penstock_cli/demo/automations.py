"""Makes the two rules of the demo, and receives the webhooks of one.

One rule sends a webhook for each completed run. The other rule has a hook that starts runs.

The rules are written to a file in the data folder, as an operator would do. If the operator has a
file of rules (`PENSTOCK_RULES`), the demo makes no rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
import yaml
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import Bus
from penstock.web.auth.identity import ANONYMOUS_USER
from penstock.web.bodies import read_body
from penstock.web.operation import OBJECT, Answer, Operation, routes_of, serves
from penstock.web.problems import Problem
from penstock.web.server import Server
from penstock_automations.rules.secrets import new_secret
from penstock_automations.rules.store import RuleStore
from penstock_cli.local.embedded_nats import password, private_folder, write_private

PATH = "/webhook"


class Receiver:
    """A server on a free port of this machine. `say` gets one line for each webhook."""

    def __init__(self, secret: str, say: Callable[[str], None]) -> None:
        self._webhook = Webhook(secret)
        self._say = say
        self._server = Server(routes_of(self), "127.0.0.1", 0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}{PATH}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    @serves(
        Operation(
            method="POST",
            path=PATH,
            summary="A webhook of the demo rule",
            tag="demo",
            answers={204: Answer("The webhook is signed with the rule's secret")},
            scopes=(),
            public=True,
            body=OBJECT,
            refusals=(401,),
            published=False,
        )
    )
    async def receive(self, request: Request) -> Response:
        """Check the signature as every receiver should, and print the webhook."""
        body = await read_body(request)
        try:
            self._webhook.verify(body, dict(request.headers), json_parse=False)
        except (WebhookVerificationError, ValueError) as error:
            self._say(f"webhook refused, signature NOT valid: {error}")
            raise Problem(401, "the signature is not valid") from error
        delivery_id = request.headers.get("penstock-delivery", "unknown")
        self._say(line(orjson.loads(body), delivery_id))
        return Response(status_code=204)


def line(body: dict[str, Any], delivery_id: str) -> str:
    rule = delivery_id.partition(".")[0]
    run = body["data"].get("run_id")
    return f"webhook of rule {rule}: {body['type']}, run {run}, signature valid"


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
