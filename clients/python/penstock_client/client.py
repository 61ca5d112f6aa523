"""The client of Penstock, for threads: made from async_client.py by `make contract`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

import httpx

from penstock.sse import Frame
from penstock_client import calls, requests, retries
from penstock_client.errors import TAKEN_OVER, PenstockError, refusal
from penstock_client.following import Following, Notice, ends, read
from penstock_client.models import ApprovalRecord, RunRecord
from penstock_client.requests import ItemDecision, Request, StartOptions, path_of
from penstock_client.retries import Retries, Server

if TYPE_CHECKING:
    from penstock.events import Event


class Client:
    """Penstock at one URL. Each method raises `PenstockError`.

    `token` is a bearer token, or a function that returns the present one. `notice` gets a line for
    each broken connection, which the client makes again by itself.
    """

    def __init__(
        self,
        url: str = calls.DEFAULT_URL,
        *,
        token: calls.Token = None,
        notice: Callable[[str], None] = lambda _: None,
        user_agent: str = calls.USER_AGENT,
    ) -> None:
        self.url = url.rstrip("/")
        self._server = Server(self.url, notice)
        self._http = httpx.Client(**calls.options(self.url, token, user_agent))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # RUNS

    def run(
        self,
        agent: str,
        message: str,
        *,
        deadline_s: float | None = None,
        **options: Unpack[StartOptions],
    ) -> Run:
        """Return a run that starts when the caller begins to iterate over its events.

        `deadline_s` limits the time until the run's end: then DeadlineReached is raised, and the
        run goes on.
        """
        body = {"agent": agent, "message": message, **options}
        return Run(self, requests.start("/v1/runs", body), deadline_s=deadline_s)

    def run_workflow(
        self, name: str, *, deadline_s: float | None = None, **options: Unpack[StartOptions]
    ) -> Run:
        """Return a workflow's run, as `run` does. The steps' runs are part of its stream."""
        begin = requests.start(path_of("workflows", name, "runs"), options)
        return Run(self, begin, children=True, deadline_s=deadline_s)

    def follow(
        self,
        run_id: str,
        *,
        after: str | None = None,
        children: bool = False,
        deadline_s: float | None = None,
    ) -> Run:
        """Return a run that was started before. Its stream begins after the cursor `after`. With
        `children`, the stream of a workflow's run also has the events of its steps' runs."""
        return Run(self, run_id, after=after, children=children, deadline_s=deadline_s)

    def start(self, agent: str, message: str, **options: Unpack[StartOptions]) -> RunRecord:
        """Start a run that nobody follows."""
        body = {"agent": agent, "message": message, **options}
        return cast(RunRecord, self.call(requests.start("/v1/runs", body)))

    def record(self, run_id: str) -> RunRecord:
        return cast(RunRecord, self.call(Request("GET", path_of("runs", run_id))))

    def state(self, run_id: str, at: int | None = None) -> dict[str, Any]:
        """Return the run's state after its event with the sequence `at`, or after the last one."""
        return self.call(Request("GET", path_of("runs", run_id, "state"), {"at": at}))

    def cancel(self, run_id: str) -> dict[str, Any]:
        return self.call(Request("POST", path_of("runs", run_id, "cancel")))

    def runs(self, **filters: object) -> Iterator[RunRecord]:
        """Yield the caller's runs, the newest first. `filters` are the query parameters of
        `GET /v1/runs`: agent, session_id, status, tag, text, since, until …"""
        return cast(Iterator[RunRecord], self.pages("/v1/runs", "runs", "before", filters))

    # APPROVALS

    def approvals(self, **filters: object) -> Iterator[ApprovalRecord]:
        """Yield approvals: pending ones with a deadline first. `filters` are the query parameters
        of `GET /v1/approvals`: status, run_id, tool …"""
        found = self.pages("/v1/approvals", "approvals", "after", filters)
        return cast(Iterator[ApprovalRecord], found)

    def approval(self, approval_id: str) -> ApprovalRecord:
        path = path_of("approvals", approval_id)
        return cast(ApprovalRecord, self.call(Request("GET", path)))

    def decide(
        self,
        approval: ApprovalRecord,
        items: bool | Sequence[ItemDecision],
        note: str | None = None,
    ) -> ApprovalRecord:
        """Decide what `approval` shows, which the caller has shown to the person who decides.

        True approves all items, False rejects them. The service refuses the decision with 409 if
        the request has changed since `approval` was read.
        """
        return cast(ApprovalRecord, self.call(requests.decide(approval, items, note)))

    def approval_changes(self) -> Generator[Frame, None, None]:
        """Yield the changes of approvals from now on. The first frame of each connection contains
        no change."""
        return self._frames(
            Following(self._server, "/v1/approvals/events", {}, None, until="never")
        )

    # FURTHER LISTS

    def workflows(self, **filters: object) -> Iterator[dict[str, Any]]:
        return self.pages("/v1/workflows", "workflows", "after", filters)

    def automations(self, **filters: object) -> Iterator[dict[str, Any]]:
        return self.pages("/v1/automations", "automations", "after", filters)

    def costs(self, **filters: object) -> Iterator[dict[str, Any]]:
        """Yield what the caller's runs used and cost. `filters` are the query parameters of
        `GET /v1/costs`: by, since, until, agent …"""
        return self.pages("/v1/costs", "costs", "after", filters)

    # ANY REQUEST

    def call(self, request: Request) -> dict[str, Any]:
        """Send a request and return the JSON object of its answer."""
        patience = Retries(self._server, retries.CALL_GIVE_UP_S)
        while True:
            try:
                response = self._http.request(**calls.arguments(request))
            except httpx.TransportError as error:
                time.sleep(calls.after_failure(self.url, request, error, patience))
                continue
            self._server.has_answered = True
            answer = calls.after_answer(self.url, request, response, patience)
            if isinstance(answer, dict):
                return answer
            time.sleep(answer)

    def pages(
        self, path: str, name: str, cursor: str, filters: Mapping[str, object]
    ) -> Iterator[dict[str, Any]]:
        """Yield the entries `name` of all pages of a list. `cursor` is the query parameter that
        gets the previous page's `next`."""
        following: str | None = None
        while True:
            page = self.call(Request("GET", path, {cursor: following, **filters}))
            yield from page[name]
            following = page.get("next")
            if following is None:
                return
            filters = {key: value for key, value in filters.items() if key != cursor}

    def frames(
        self,
        run_id: str,
        *,
        after: str | None = None,
        dialect: str = "canonical",
        include: Literal["children", "none"] | None = None,
        deadline_s: float | None = None,
    ) -> Generator[Frame, None, None]:
        """Yield the frames of a run's stream in any dialect, until the stream ends."""
        query = {"dialect": dialect} | ({"include": include} if include else {})
        path = path_of("runs", run_id, "events")
        return self._frames(
            Following(self._server, path, query, after, until="end of run", deadline_s=deadline_s)
        )

    def _frames(self, following: Following) -> Generator[Frame, None, None]:
        while not following.is_over:
            try:
                with self._http.stream(
                    "GET",
                    following.path,
                    params=following.query,
                    headers=following.headers,
                    timeout=following.timeout,
                ) as response:
                    match following.open(response.status_code, response.headers):
                        case "refusal":
                            response.read()
                            raise refusal(response)
                        case "stream":
                            for chunk in response.iter_bytes():
                                yield from following.feed(chunk)
                pause_s = following.ended(response.status_code)
            except httpx.TransportError as error:
                pause_s = following.failed(error)
            time.sleep(pause_s)


class Run:
    """A run: iterate over it to get its events.

    The connection is made again when it breaks, and no event is missed or repeated. An iteration
    that was ended continues with the next one. If a second one begins while the first one goes on,
    it takes over, and the first one raises PenstockError. `cursor` is where another process, or a
    second reader, goes on, by `Client.follow(run_id, after=cursor)`.
    """

    def __init__(
        self,
        client: Client,
        begin: Request | str,
        *,
        after: str | None = None,
        children: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        self.run_id = begin if isinstance(begin, str) else None
        self.cursor = after
        self._begin = begin
        self._client = client
        self._include: Literal["children"] | None = "children" if children else None
        self._deadline_s = deadline_s
        self._iterations = 0

    def __iter__(self) -> Generator[Event | Notice, None, None]:
        self._iterations += 1
        number = self._iterations
        run_id = self.start()
        frames = self._client.frames(
            run_id, after=self.cursor, include=self._include, deadline_s=self._deadline_s
        )
        with closing(frames):
            for frame in frames:
                event = read(frame)
                if number != self._iterations:
                    # each would move the cursor of the other
                    raise PenstockError(TAKEN_OVER)
                self.cursor = frame.id or self.cursor
                yield event
                if ends(event, run_id):
                    return

    def start(self) -> str:
        """Start the run, if it was not started yet, and return its id."""
        if self.run_id is None:
            assert isinstance(self._begin, Request)
            started = self._client.call(self._begin)
            self.run_id = str(started["run_id"])
        return self.run_id

    def wait(self) -> RunRecord:
        """Follow the run to its end, and return its record."""
        for _ in self:
            pass
        return self._client.record(self.start())

    def cancel(self) -> dict[str, Any]:
        return self._client.cancel(self.start())
