"""Receives the webhooks of the demo's rule, checks their signatures, and prints one line for each
webhook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from starlette.requests import Request
from starlette.responses import Response

from penstock.web.bodies import read_body
from penstock.web.operation import OBJECT, Answer, Operation, routes_of, serves
from penstock.web.problems import Problem
from penstock.web.server import Server

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
        self._say(line(orjson.loads(body), request.headers["webhook-id"]))
        return Response(status_code=204)


def line(body: dict[str, Any], webhook_id: str) -> str:
    rule = webhook_id.partition(".")[0]
    run = body["data"].get("run_id")
    return f"webhook of rule {rule}: {body['type']}, run {run}, signature valid"
