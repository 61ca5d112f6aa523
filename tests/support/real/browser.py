"""A headless Chromium, and a site with a page that reports its observations to the test.

If Chromium is missing, the tests that need it are skipped with a reason; in CI they fail.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from support.real import servers

# CI runs as root, so Chromium needs --no-sandbox. The other options keep it from contacting any
# other server.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass(frozen=True, slots=True)
class Site:
    """Serve one page at every path. `asked` are the requested paths, `reports` posted bodies."""

    url: str
    asked: list[str] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def site(page: bytes) -> Iterator[Site]:
    """Return the page's origin, on a free port."""
    known: list[Site] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known[0].asked.append(self.path)
            self._answer(page)

        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            known[0].reports.append(json.loads(self.rfile.read(length)))
            self._answer(b"")

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing: the site keeps the requests."""

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known.append(Site(f"http://127.0.0.1:{server.server_port}"))
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield known[0]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def opened(url: str, folder: Path, *flags: str) -> Iterator[None]:
    """Open this page in a new browser, whose profile and log are in `folder`."""
    process = start(url, folder, os.getpid(), *flags)
    try:
        yield
    finally:
        process.stop()


def start(url: str, folder: Path, owner_pid: int, *flags: str) -> servers.Process:
    """Start a browser, which ends when the process `owner_pid` has ended. See `opened`."""
    return servers.start(
        "chromium",
        [_chromium(), *FLAGS, *flags, f"--user-data-dir={folder / 'profile'}", url],
        log=folder / "chromium.log",
        owner_pid=owner_pid,
    )


def _chromium() -> str:
    # The shell is the same engine without windows. With windows, each page takes another 0.8 s of
    # CPU, for a toolbar that nobody sees. Debian's script on the PATH would leave its child behind.
    folders = os.pathsep.join(("/usr/lib/chromium", os.environ.get("PATH", "")))
    found = shutil.which("chromium-headless-shell", path=folders) or shutil.which("chromium")
    if found is None:
        reason = "no Chromium on the PATH (Debian's package `chromium-headless-shell`)"
        if os.environ.get("CI") == "true":  # nobody would notice a skip in CI
            pytest.fail(reason)
        pytest.skip(reason)
    return found
