"""A server for A2A's conformance kit: a2aproject/a2a-tck, branch 1.0-dev, is fetched by hand.

    PYTHONPATH=tests .venv/bin/python tests/clients/a2a/sut.py 9999
    ./run_tck.py --sut-host http://127.0.0.1:9999/a2a/tck --transport jsonrpc,http_json

All services but the connector are real. The kit says by the beginning of the message id what an
agent does, and no agent server gets this id. So a pretended connector writes an Agno's answers.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import orjson
from nats.aio.msg import Msg

from penstock.bus import Bus, RawWriter, subjects
from penstock.bus.records.runs import StartCommand
from penstock.bus.write.objects import unwrap
from penstock.dialects.a2a import client_message_id
from penstock.settings import Config
from penstock.web.server import Server
from penstock_approvals.service import ApprovalsService
from penstock_automations.service import AutomationsService
from penstock_edge.service import EdgeService
from penstock_normalizer.service import NormalizerService
from support.drive.pipeline import Services, pipeline
from support.fakes.raw import agno, agno_pause, agno_text
from support.real.nats import NatsServer

FILE: Final = {
    "name": "output.txt",
    "media_type": "text/plain",
    "uri": "https://example.com/output.txt",
}
DATA: Final = {"key": "value", "count": 42}
# The answer to a message whose id begins so.
TEXTS: Final = {
    "tck-stream-artifact-chunked": ("chunk-1 ", "chunk-2"),
    "tck-stream-artifact-text": ("Streamed text content",),
    "tck-stream-ordering-001": ("Ordered output",),
    "tck-stream-001": ("Stream hello from TCK",),
    "tck-stream-003": ("Stream task lifecycle",),
    "tck-artifact-text": ("Generated text content",),
}
LONG_S: Final = 12.0


async def play(bus: Bus, command: StartCommand) -> None:
    message_id = client_message_id(command.idempotency_key) or ""
    writer = await RawWriter.resume(bus, command.run_id, "upstream", "tck")
    facts: dict[str, str | None] = {"agent": command.agent, "protocol": "agno", "kind": "agent"}
    facts |= {
        "message": command.message,
        "session_id": command.session_id,
        "user_id": command.user_id,
    }
    facts |= {"idempotency_key": command.idempotency_key}
    await writer.write("open", orjson.dumps(facts), leg=1)
    texts = next((text for id, text in TEXTS.items() if message_id.startswith(id)), None)
    body = agno_text(*(texts or ("Hello from TCK",)))
    if "input-required" in message_id:
        body = agno_pause()
    elif "artifact-file" in message_id:
        made = agno("CustomEvent", name="artifact.updated", value=FILE)
        body = agno("RunStarted") + made + agno("RunCompleted", content="")
    elif "artifact-data" in message_id:
        body = agno("RunStarted") + agno("RunCompleted", content=DATA, content_type="dict")
    elif message_id.startswith("test-resubscribe"):
        await writer.write("bytes", agno("RunStarted"), leg=1)
        await asyncio.sleep(LONG_S)
    await writer.write("bytes", body, leg=1)
    await writer.write("end", b'{"outcome":"eof"}', leg=1)


async def main(port: int) -> None:
    agent = {"id": "tck", "protocol": "agno", "url": "http://127.0.0.1:9", "agent": "tck"}
    config = Config.model_validate({"agents": [agent]})
    services: Services = (NormalizerService, ApprovalsService, AutomationsService, EdgeService)
    given: dict[str, Any] = {"cancel_wait_s": 0.1, "webhook_allow_hosts": ("localhost",)}
    tasks: set[asyncio.Task[None]] = set()
    with tempfile.TemporaryDirectory() as folder:
        nats = NatsServer(Path(folder) / "nats")
        nats.start()
        try:
            async with pipeline(nats.url, config, services, **given) as penstock:

                async def on_start(msg: Msg) -> None:
                    command = StartCommand.model_validate_json(await unwrap(penstock.bus, msg.data))
                    tasks.add(asyncio.create_task(play(penstock.bus, command)))

                await penstock.bus.subscribe(subjects.command("connector", "start", "*"), on_start)
                routes = [route for each in penstock.services for route in each.routes]
                server = Server(routes, "127.0.0.1", port)
                await server.start()
                print(f"http://127.0.0.1:{port}/a2a/tck", flush=True)
                await asyncio.Event().wait()
        finally:
            nats.remove()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
