"""Penstock's HTTP API for the commands: a client, with the advice of the terminal in its errors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, Self

from penstock.sse import Frame
from penstock_client import ApiError, Client, PenstockError, Request, Unreachable, path_of, requests

# The header `User-Agent`. By this header, the approvals service recognises decisions from the
# channel `cli`.
USER_AGENT = f"penstock-cli/{version('penstock-cli')}"
NOT_FOUND, CONFLICT = 404, 409
MAX_PAGE = 1000  # the greatest number of entries that the services put on a page
_UNREACHABLE: Final = {
    "refused": "; start it with `make run`",
    "certificate": "; name the file of its authority: `penstock --ca FILE …`, or SSL_CERT_FILE",
    "foreign": ": check --url",
}
_REFUSED: Final = {
    401: ". Set PENSTOCK_TOKEN to a token for it; with its PENSTOCK_AUTH_JWT_SECRET in the "
    "environment, `penstock token` makes one for development",
}


def advice(error: PenstockError) -> str:
    """Return the text of an error with what to do about it at the terminal."""
    if isinstance(error, Unreachable):
        return f"{error}{_UNREACHABLE.get(error.reason, '')}"
    return f"{error}{_REFUSED.get(error.status, '') if isinstance(error, ApiError) else ''}"


def exit_code(error: PenstockError) -> int:
    """Return 1 where the server could not do what was right to ask for, else 2."""
    is_theirs = isinstance(error, ApiError) and (error.status == CONFLICT or error.status >= 500)
    return 1 if is_theirs else 2


class Api:
    """The API at one URL. `notice` gets messages about the connection; `token` authenticates."""

    def __init__(self, url: str, notice: Callable[[str], None], token: str | None = None) -> None:
        self._client = Client(url, token=token, notice=notice, user_agent=USER_AGENT)
        self.url = self._client.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def start_with(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start a run with a POST to this path. A retry sends the same idempotency key, so that no
        second run starts."""
        return self._client.call(requests.start(path, body))

    def run(self, run_id: str) -> dict[str, Any]:
        return self.call("GET", path_of("runs", run_id))

    def events(self, run_id: str) -> list[dict[str, Any]]:
        """Return the canonical events that a run has so far. If the run is a workflow's run, the
        events of its steps' runs are not included."""
        path = path_of("runs", run_id, "events")
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = self.call("GET", path, {"after": cursor})
            found += page["events"]
            if page["next"] is None or page["next"] == cursor:
                return found
            cursor = page["next"]

    def costs(self, limit: int, **query: object) -> tuple[list[dict[str, Any]], bool]:
        return self.pages("/v1/costs", "costs", "after", limit, query)

    def approval(self, approval_id: str) -> dict[str, Any]:
        return self.call("GET", path_of("approvals", approval_id))

    def approvals(self, limit: int, **filters: object) -> tuple[list[dict[str, Any]], bool]:
        return self.pages("/v1/approvals", "approvals", "after", limit, filters)

    def decide(
        self, approval: Mapping[str, Any], items: Sequence[Mapping[str, Any]], note: str | None
    ) -> dict[str, Any]:
        """Decide the items of an approval.

        The service refuses the decision if the request has changed since `approval` was read. A
        retry sends the same idempotency key, so it gets the answer of the first try.
        """
        return self._client.call(requests.decide(approval, items, note))

    def follow(
        self,
        run_id: str,
        *,
        dialect: str = "canonical",
        after: str | None = None,
        children: bool = False,
    ) -> Generator[Frame, None, None]:
        """Yield a run's frames after a cursor until the run ends, and reconnect as needed.

        With `children`, the stream of a workflow's run also has the events of its steps' runs.
        """
        return self._client.frames(
            run_id, dialect=dialect, after=after, include="children" if children else None
        )

    def changes(self) -> Generator[Frame, None, None]:
        """Yield the changes of approvals from now on, and reconnect as needed. The first frame of
        each connection contains no change."""
        return self._client.approval_changes()

    def pages(
        self,
        path: str,
        name: str,
        cursor: str,
        limit: int,
        filters: Mapping[str, object],
        most: int = MAX_PAGE,
    ) -> tuple[list[dict[str, Any]], bool]:
        """Read pages of a list.

        `cursor` is the name of the query parameter that gets the previous page's `next`.

        `most` is the greatest number of entries on a page. Returns up to `limit` entries, and
        whether there are more.
        """
        found: list[dict[str, Any]] = []
        following: str | None = None
        while True:
            size = min(limit - len(found), most)
            page = self.call("GET", path, {**filters, "limit": size, cursor: following})
            found += page[name]
            following = page.get("next")
            if following is None or len(found) >= limit:
                return found, following is not None

    def call(
        self,
        method: str,
        path: str,
        params: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
        *,
        yaml: bytes | None = None,
        repeat: bool = True,
    ) -> dict[str, Any]:
        """Send a request and return the answer. With `repeat`, a failed request is repeated. `body`
        is sent as JSON; `yaml` is a document that is sent unchanged."""
        return self._client.call(Request(method, path, params or {}, body, yaml, repeat))
