"""The peer without Penstock: httpx stream in, StreamingResponse out.

`python plain_proxy.py PORT UPSTREAM`; a path of the proxy is the same path of the upstream.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))


async def proxy(request: Request) -> StreamingResponse:
    """Pass the body on as it comes, with one shared client for all requests."""
    body = await request.body()
    url = f"{sys.argv[2]}{request.url.path}"

    async def stream() -> AsyncIterator[bytes]:
        async with client.stream("POST", url, content=body) as upstream:
            async for chunk in upstream.aiter_bytes():
                yield chunk

    return StreamingResponse(stream(), media_type="text/event-stream")


if __name__ == "__main__":
    app = Starlette(routes=[Route("/{path:path}", proxy, methods=["POST"])])
    print("ready", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
