"""The naive peer: an SSE edge with FastAPI, sse-starlette, and a consumer per client.

`python naive_edge.py PORT NATS_URL`, in the environment of deploy/upstreams/bench_naive.txt.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import uvicorn
from fastapi import FastAPI  # type: ignore[import-not-found, unused-ignore]
from nats.js import JetStreamContext
from sse_starlette import EventSourceResponse  # type: ignore[import-not-found, unused-ignore]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    connection = await nats.connect(sys.argv[2])
    app.state.jetstream = connection.jetstream()
    yield
    await connection.close()


async def stream(run_id: str) -> EventSourceResponse:
    """Stream the events of a run from its start."""
    jetstream: JetStreamContext = app.state.jetstream

    async def events() -> AsyncIterator[dict[str, str]]:
        consumer = await jetstream.subscribe(
            f"*.*.{run_id}", stream="EVENTS", ordered_consumer=True
        )
        try:
            async for message in consumer.messages:
                sequence = message.metadata.sequence.stream
                yield {"id": f"{sequence}", "event": "event", "data": message.data.decode()}
        finally:
            await consumer.unsubscribe()

    return EventSourceResponse(events())


app = FastAPI(lifespan=lifespan)
app.add_api_route("/runs/{run_id}", stream)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="info", access_log=False)
