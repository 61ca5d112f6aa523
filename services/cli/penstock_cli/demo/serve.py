"""Serve a demo agent server: `serve.py APP --fd N`, or `serve.py APP --host H --port P`.

APP is `agno_app` or `adk_app`. With `--fd`, the server listens on a socket that the parent process
has bound. So the parent process knows the port before the server is up. This script runs in the
environments of Agno and ADK.
"""

from __future__ import annotations

import argparse
import importlib
import socket

import uvicorn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("app", choices=["agno_app", "adk_app"])
    parser.add_argument("--fd", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    app = importlib.import_module(arguments.app).app
    config = uvicorn.Config(
        app, host=arguments.host, port=arguments.port, timeout_graceful_shutdown=2
    )
    sockets = [socket.socket(fileno=arguments.fd)] if arguments.fd is not None else None
    uvicorn.Server(config).run(sockets)


if __name__ == "__main__":
    main()
