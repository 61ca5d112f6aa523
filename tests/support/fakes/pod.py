"""`python pod.py <how>`: a program for a pod, whose end or start may go wrong on purpose.

It answers every path with 200. `plain` ends at once at SIGTERM, `stubborn` ignores it, and
`unready` answers `/readyz` with 503.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys


async def main(how: str) -> None:
    """Serve PENSTOCK_PORT and PENSTOCK_PROBE_PORT until SIGTERM."""
    ended = asyncio.Event()
    on_end = (lambda: None) if how == "stubborn" else ended.set
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_end)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        while await reader.readline() not in (b"\r\n", b""):
            pass
        refuses = how == "unready" and b" /readyz" in line
        status = b"503 Service Unavailable" if refuses else b"200 OK"
        writer.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    for name in ("PENSTOCK_PORT", "PENSTOCK_PROBE_PORT"):
        await asyncio.start_server(answer, "127.0.0.1", int(os.environ[name]))
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
