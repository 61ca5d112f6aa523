"""Serves the page's static files.

The files are public, because they contain no data: the page's scripts request all data from the
API. The files are served even if the bus does not answer, because the page shows that the bus does
not answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.web.operation import Answer, Handler, Operation, Route
from penstock_edge.surfaces.surface import Surface

FOLDER: Final = Path(__file__).with_name("static")

# The page's Content-Security-Policy. With this policy, the browser loads nothing from other hosts,
# runs no inline script, and submits no form.
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
PATHS: Final = {
    "/": "index.html",
    "/docs": "docs.html",
    "/openapi.json": "openapi.json",
    "/favicon.ico": "icon.svg",
    "/assets/icon.svg": "icon.svg",
    "/assets/page.css": "page.css",
    "/assets/page.js": "page.js",
    "/assets/api.js": "api.js",
    "/assets/text.js": "text.js",
    "/assets/approval.js": "approval.js",
    "/assets/trial.js": "trial.js",
    "/assets/docs.js": "docs.js",
}


class File:
    """The handler for one file, which is read once.

    A browser that already has this version of the file gets 304.
    """

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


_OPERATIONS: Final = tuple(
    Operation(
        method="GET",
        path=path,
        summary=f"The file {name}",
        tag="page",
        answers={200: Answer("The file"), 304: Answer("The browser has this version")},
        scopes=(),
        public=True,
        published=False,
    )
    for path, name in PATHS.items()
)


class FirstPage(Surface):
    """Has the handlers for the page at `/` and `/docs`, which work even if the bus does not
    answer."""

    handlers = ()

    @classmethod
    def operations(cls) -> tuple[Operation, ...]:
        return _OPERATIONS

    def routes(self, around: Callable[[Handler], Handler]) -> list[Route]:
        """Return a route for each file.

        `around` would answer 503 if the bus does not answer. The handlers are not wrapped in
        `around`, because the page must load even then, to show that the bus does not answer.
        """
        return [
            Route(operation, File(FOLDER / PATHS[operation.path]).__call__)
            for operation in _OPERATIONS
        ]
