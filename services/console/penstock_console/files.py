"""Serves the static files of the pages from memory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.web.operation import Answer, Operation, Route, in_path
from penstock.web.problems import Problem

FOLDER: Final = Path(__file__).with_name("static")

# The Content-Security-Policy of the pages. With this policy, the browser loads nothing from other
# hosts, runs no inline script, and submits no form.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
# The files that have a path of their own.
PAGES: Final = {
    "/": "index.html",
    "/console": "index.html",
    "/console/{screen:path}": "index.html",
    "/docs": "index.html",
    "/openapi.json": "openapi.json",
    "/favicon.ico": "icon.svg",
}
# All other files are below this path, under their own names.
ASSETS: Final = "/assets/{name:path}"


class File:
    """A file, which is read once. A browser that already has this version of the file gets 304."""

    def __init__(self, path: Path) -> None:
        self._body = path.read_bytes()
        self._etag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'
        self._headers = {
            "content-type": TYPES[path.suffix],
            "content-security-policy": POLICY,
            "cross-origin-opener-policy": "same-origin",
            "cache-control": "no-cache",
            "etag": self._etag,
        }

    async def __call__(self, request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if self._etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(None, 304, self._headers)
        return Response(self._body, headers=self._headers)


class Assets:
    """The handler for the files that have no path of their own."""

    def __init__(self) -> None:
        own = set(PAGES.values()) - {"icon.svg"}
        self._files = {
            name: File(path)
            for path in sorted(FOLDER.rglob("*"))
            if path.suffix in TYPES and (name := path.relative_to(FOLDER).as_posix()) not in own
        }

    async def __call__(self, request: Request) -> Response:
        """Answer with the file, or raise Problem: 404 if there is no such file."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise Problem(404, "the console has no such file")
        return await file(request)


_IN_PATHS: Final = {"name": "The file's name", "screen": "The screen, which the page itself reads"}


def _operation(path: str, summary: str) -> Operation:
    return Operation(
        method="GET",
        path=path,
        summary=summary,
        tag="console",
        answers={200: Answer("The file"), 304: Answer("The browser has this version")},
        scopes=(),
        public=True,
        published=False,
        parameters=tuple(
            in_path(each, _IN_PATHS[each]) for each in _IN_PATHS if f"{{{each}:" in path
        ),
    )


_PAGES: Final = tuple(_operation(path, f"The file {name}") for path, name in PAGES.items())
_ASSETS: Final = _operation(ASSETS, "A file that a page needs")
OPERATIONS: Final = (*_PAGES, _ASSETS)


def file_routes() -> list[Route]:
    """Return a route for each page, and a route for all other files."""
    pages = [Route(page, File(FOLDER / PAGES[page.path])) for page in _PAGES]
    return [*pages, Route(_ASSETS, Assets())]
