"""A client of Penstock's HTTP API: it sends requests, and reconnects to a run's stream.

CallFailed
├── Unreachable    no server answers at the URL
└── ApiError       the service refused the request, with RFC 9457 problem details
"""

from __future__ import annotations

import ipaddress
import ssl
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Self
from urllib.parse import quote

import httpx

from penstock.sse import Frame, Parser

DEFAULT_URL = "http://127.0.0.1:8000"
REQUEST_TIMEOUT_S = 30.0
# A stream counts as broken after this many seconds without bytes. In this time, a healthy server
# sends three keep-alive comments.
STREAM_READ_TIMEOUT_S = 45.0
BACKOFF_S = (0.5, 1.0, 2.0, 5.0)  # the seconds between tries; the last value is repeated
GIVE_UP_S = 120.0
CALL_GIVE_UP_S = 10.0
# The header `User-Agent`. By this header, the approvals service recognises decisions from the
# channel `cli`.
USER_AGENT = f"penstock-cli/{version('penstock-cli')}"
_TRY_AGAIN = frozenset({502, 503, 504})
NOT_FOUND, CONFLICT, GONE = 404, 409, 410
NO_CONTENT = 204
MAX_PAGE = 1000  # the greatest number of entries that the services put on a page
_ADVICE = {
    401: ". Set PENSTOCK_TOKEN to a token for it; with its PENSTOCK_AUTH_JWT_SECRET in the "
    "environment, `penstock token` makes one for development",
}


class CallFailed(Exception):
    """The error for a failed call. The text says what is wrong, and the command ends with
    `exit_code`."""

    exit_code = 2


class Unreachable(CallFailed):
    """No server answers at the URL."""


class ApiError(CallFailed):
    """The service refused the request."""

    def __init__(self, status: int, detail: str, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.errors = errors  # the invalid fields, each with `field` and `message`
        self.exit_code = 1 if status == CONFLICT or status >= 500 else 2


class Api:
    """The API at one URL. `notice` gets messages about the connection; `token` authenticates."""

    def __init__(self, url: str, notice: Callable[[str], None], token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._notice = notice
        try:
            self._http = httpx.Client(
                base_url=self.url,
                timeout=REQUEST_TIMEOUT_S,
                headers={"user-agent": USER_AGENT}
                | ({"authorization": f"Bearer {token}"} if token else {}),
                # a proxy cannot reach this machine's loopback address
                trust_env=not _is_loopback(self.url),
                # with its own `trust_env`, so that SSL_CERT_FILE counts for loopback, too
                verify=httpx.create_ssl_context() if self.url.startswith("https:") else True,
            )
        except OSError as error:
            text = f"the certificates of --ca or SSL_CERT_FILE cannot be read: {error}"
            raise Unreachable(text) from error
        except (httpx.InvalidURL, ValueError) as error:
            raise Unreachable(f"{url} is no URL: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def start_with(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Start a run with a POST to this path. A retry sends the same idempotency key, so that no
        second run starts."""
        return self.call("POST", path, body={**body, "idempotency_key": str(uuid.uuid4())})

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
        body = {
            "items": items,
            "note": note,
            "digest": approval.get("digest"),
            "idempotency_key": str(uuid.uuid4()),
        }
        path = path_of("approvals", approval["approval_id"], "decision")
        return self.call("POST", path, body={k: v for k, v in body.items() if v is not None})

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

        Raises ApiError. Raises Unreachable if the first connection fails, or if no later connection
        succeeds within two minutes.
        """
        path = path_of("runs", run_id, "events")
        query = {"dialect": dialect} | ({"include": "children"} if children else {})
        cursor = after
        patience = _RetryLimit(self.url, self._notice, GIVE_UP_S)
        while True:
            any_frame = False
            try:
                for frame in self._connection(path, query, cursor, patience):
                    cursor, any_frame = frame.id or cursor, True
                    yield frame
            except _Finished:
                return
            except (httpx.TransportError, _Unavailable) as error:
                if isinstance(error, httpx.ConnectError) and patience.untried:
                    raise self._unreachable(error) from error
                patience.spend(str(error) or type(error).__name__)
                continue
            if not any_frame:
                patience.spend("the stream ended")
            elif cursor is None:
                return  # the frames have no ids, so a new connection would repeat them all

    def changes(self) -> Generator[Frame, None, None]:
        """Yield the changes of approvals from now on, and reconnect as needed.

        The first frame of each connection contains no change. Raises ApiError. Raises Unreachable
        if the first connection fails, or if no later connection succeeds within two minutes.
        """
        cursor: str | None = None
        patience = _RetryLimit(self.url, self._notice, GIVE_UP_S)
        while True:
            try:
                for frame in self._connection("/v1/approvals/events", {}, cursor, patience):
                    cursor = frame.id or cursor
                    yield frame
                patience.spend("the stream ended")
            except (httpx.TransportError, _Unavailable) as error:
                if isinstance(error, httpx.ConnectError) and patience.untried:
                    raise self._unreachable(error) from error
                patience.spend(str(error) or type(error).__name__)
            except ApiError as error:
                if error.status != GONE or cursor is None:
                    raise
                cursor = None  # NATS has lost changes, so continue with changes from now on

    def _connection(
        self, path: str, params: Mapping[str, str], cursor: str | None, patience: _RetryLimit
    ) -> Iterator[Frame]:
        with self._http.stream(
            "GET",
            path,
            params=dict(params),
            headers={"Accept": "text/event-stream"} | ({"Last-Event-ID": cursor} if cursor else {}),
            timeout=httpx.Timeout(REQUEST_TIMEOUT_S, read=STREAM_READ_TIMEOUT_S),
        ) as response:
            if response.status_code == httpx.codes.NO_CONTENT:
                raise _Finished
            if response.status_code in _TRY_AGAIN:
                raise _Unavailable(f"it answered {response.status_code}")
            if response.status_code != httpx.codes.OK:
                response.read()
                raise _refusal(response)
            parser = Parser()
            for chunk in response.iter_bytes():
                patience.renew()  # keep-alive comments also show that the server answers
                yield from parser.feed(chunk)

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
        # Without this header, the service would send a run's events as a stream, which ends only
        # when the run ends.
        kind = {"Accept": "application/json"}
        if yaml is not None:
            kind["Content-Type"] = "application/yaml"
        query = {
            k: v if isinstance(v, list) else str(v)
            for k, v in (params or {}).items()
            if v is not None
        }
        patience = _RetryLimit(self.url, self._notice, CALL_GIVE_UP_S)
        while True:
            try:
                response = self._http.request(
                    method, path, params=query, json=body, content=yaml, headers=kind
                )
            except (httpx.ConnectError, httpx.TimeoutException) as error:
                raise self._unreachable(error) from error
            except httpx.UnsupportedProtocol as error:
                raise Unreachable(f"{self.url} is no http:// or https:// address") from error
            except httpx.TransportError as error:
                # Starts and decisions have an idempotency key, so these requests may be repeated.
                if not repeat:
                    text = f"{self.url} did not answer ({error}); it is not known what it has done"
                    raise Unreachable(text) from error
                patience.spend(str(error) or type(error).__name__)
                continue
            if response.status_code in _TRY_AGAIN and repeat:
                patience.spend(f"it answered {response.status_code}")
                continue
            if not response.is_success:
                raise _refusal(response)
            return {} if response.status_code == NO_CONTENT else self._object(response)

    def _object(self, response: httpx.Response) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise CallFailed(f"something answers at {self.url}, but it is no Penstock: check --url")
        return answer

    def _unreachable(self, error: BaseException) -> Unreachable:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ssl.SSLError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            return Unreachable(f"nothing answers at {self.url}; start it with `make run`")
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Unreachable(
                f"the certificate of {self.url} is not trusted ({cause.verify_message}); name the "
                "file of its authority: `penstock --ca FILE …`, or SSL_CERT_FILE"
            )
        reason = cause.reason or cause
        return Unreachable(f"no TLS connection to {self.url} ({reason}); does it serve http://?")


class _Unavailable(Exception):
    """The service cannot answer now, but a later request may succeed."""


class _Finished(Exception):
    """The stream has reached the run's end."""


class _RetryLimit:
    """Limits the time of retries after failures. A success resets the limit."""

    def __init__(self, url: str, notice: Callable[[str], None], give_up_s: float) -> None:
        self.untried = True
        self._url = url
        self._notice = notice
        self._give_up_s = give_up_s
        self._failures = 0
        self._since = 0.0  # the time of the first failure in a row

    def renew(self) -> None:
        self.untried = False
        self._failures = 0

    def spend(self, failure: str) -> None:
        """Report a failure and wait before the next try. Raises Unreachable after `give_up_s`."""
        self.untried = False
        if not self._failures:
            self._since = time.monotonic()
        elif time.monotonic() - self._since > self._give_up_s:
            raise Unreachable(f"{self._url} does not answer since {self._give_up_s:g} s: {failure}")
        pause_s = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
        self._failures += 1
        self._notice(f"connection lost ({failure}); trying again in {pause_s:g} s")
        time.sleep(pause_s)


def _refusal(response: httpx.Response) -> ApiError:
    errors: Sequence[Mapping[str, Any]] = ()
    try:
        problem = response.json()
        detail = problem["detail"]
        errors = problem.get("errors", ())
    except (ValueError, KeyError, TypeError):
        detail = response.text.strip()[:200] or response.reason_phrase
    advice = _ADVICE.get(response.status_code, "")
    return ApiError(response.status_code, f"{detail} ({response.status_code}){advice}", errors)


def path_of(*segments: str) -> str:
    """Return the path below /v1 with these segments, each quoted."""
    return "/".join(["/v1", *(quote(each, safe="") for each in segments)])


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
