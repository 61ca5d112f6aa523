"""The HTTP routes of approvals: list, show, follow and decide approvals.

Who may see an approval, and for whom it waits, is in `inbox.visibility`, and who may decide it in
`policy.deciding_rights`. Of an approval that a person may not see, the person gets the same 404 as
of one that does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import Bus
from penstock.bus.records.approvals import (
    ApprovalRecord,
    Channel,
    Decided,
    Decider,
    DecideReply,
    DecideRequest,
    RemarkKind,
)
from penstock.service.deciders import decider_of
from penstock.web.answers import json_answer, while_connected
from penstock.web.auth import Identity, deciding_user, identity_of
from penstock.web.auth.limits import count_stream
from penstock.web.bodies import ignore_body, read_model, read_query
from penstock.web.operation import (
    FLAG,
    JSON,
    NULLABLE,
    OBJECT,
    SSE,
    TEXT,
    Answer,
    Operation,
    Parameter,
    a_list,
    an_object,
    in_path,
    in_query,
    json,
    serves,
)
from penstock.web.problems import Problem
from penstock.web.read_scheduler import ReadScheduler
from penstock_approvals.api import changes
from penstock_approvals.inbox.feed import Feed
from penstock_approvals.inbox.last_lines import last_lines
from penstock_approvals.inbox.listing import ListPosition, Page
from penstock_approvals.inbox.visibility import may_see_approval, sees_whole, viewer_of
from penstock_approvals.lifecycle.decisions import Amendment, Approvals
from penstock_approvals.outcomes.remarks import with_remark
from penstock_approvals.outcomes.votes import without_vote
from penstock_approvals.policy.model import NEEDS_VALUE

TakeVote = Callable[[str, DecideRequest], Awaitable[DecideReply]]

# The console names itself by this header: a page cannot set User-Agent.
CLIENT_HEADER: Final = "penstock-client"
CONSOLE: Final = "console"
MAX_COUNTED: Final = 100

_FORMS: Final = (
    'send either items: [{"item_id": "…", "decision": "approve"}], or approved: true for all items'
)


class ItemBody(BaseModel):
    """The decision of a client on one item."""

    model_config = ConfigDict(extra="forbid")

    item_id: str
    decision: Literal["approve", "reject"]
    note: str | None = None
    value: Any = None
    args: dict[str, Any] | None = Field(
        None, description="All arguments, if the decision changes those that the policy lets change"
    )


class DecisionBody(BaseModel):
    """The decision of a client on a whole approval: one for every item, or `approved` for all, if
    each item needs only yes or no."""

    model_config = ConfigDict(extra="forbid")

    items: list[ItemBody] | None = None
    note: str | None = None
    approved: bool | None = Field(
        None, description="In place of `items`, if all items are confirmations: the same for all"
    )
    comment: str | None = Field(None, description="With `approved`: the note for all items")
    by: str | None = Field(
        None,
        description="The user for whom the caller decides, if it is another: this needs the scope "
        "act-as, and the record names both",
    )
    digest: str | None = Field(
        None,
        description="The digest of the request that was shown to the person who decides; required "
        "unless the setting require_digest is off",
    )
    idempotency_key: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="A repeat of the same decision with the same key gets the answer of the first",
    )

    @model_validator(mode="before")
    @classmethod
    def _decision_of_an_item(cls, body: Any) -> Any:
        if isinstance(body, dict) and "decision" in body:
            raise ValueError(f"a decision belongs to an item: {_FORMS}")
        return body

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.items is None) == (self.approved is None):
            raise ValueError(_FORMS)
        if self.approved is None and self.comment is not None:
            raise ValueError("comment goes with approved; with items, send note")
        if self.comment is not None and self.note is not None:
            raise ValueError("send either comment or note")
        return self

    def request(self, record: ApprovalRecord, decider: Decider) -> DecideRequest:
        """Return the decision. Raises Problem 422 for `approved`, if an item needs a value."""
        return DecideRequest(
            decider=decider,
            note=self.note if self.comment is None else self.comment,
            digest=self.digest,
            items=self._items(record),
            idempotency_key=self.idempotency_key,
        )

    def _items(self, record: ApprovalRecord) -> list[Decided]:
        if self.items is not None:
            return [Decided.model_validate(item.model_dump()) for item in self.items]
        for item in record.items:
            if item.get("kind") in NEEDS_VALUE:
                text = (
                    f"approved: item {item['item_id']} ({item['kind']}) needs more than yes or no"
                )
                raise Problem(422, f"{text}; send items")
        decision: Literal["approve", "reject"] = "approve" if self.approved else "reject"
        return [Decided(item_id=item["item_id"], decision=decision) for item in record.items]


class RemarkBody(BaseModel):
    """What a person says about an approval without deciding it."""

    model_config = ConfigDict(extra="forbid")

    kind: RemarkKind
    text: str | None = Field(None, min_length=1, max_length=2000)
    to: str | None = Field(
        None, min_length=1, max_length=256, description="To whom it is handed over"
    )
    by: str | None = Field(None, description="The user for whom the caller speaks, as in a vote")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if (self.to is not None) != (self.kind == "handover"):
            raise ValueError("to: a handover, and nothing else, names a person")
        if self.text is None and self.kind != "handover":
            raise ValueError("text: write what you ask or answer")
        return self


class Filters(BaseModel):
    """The query parameters that select approvals."""

    model_config = ConfigDict(extra="forbid")

    status: Literal["pending", "decided", "withdrawn", "expired"] | None = Field(
        None, description="Only approvals of this status"
    )
    run_id: str | None = Field(None, description="Only approvals of this run")
    agent: str | None = Field(None, description="Only approvals of this agent")
    session_id: str | None = Field(None, description="Only approvals of this session")
    user_id: str | None = Field(None, description="Only approvals of this user's runs")
    tool: str | None = Field(None, description="Only approvals that ask for this tool")
    rule: str | None = Field(None, description="Only approvals to which this rule was applied")
    since: AwareDatetime | None = Field(
        None, description="Only approvals that were requested at this time or later"
    )
    until: AwareDatetime | None = Field(
        None, description="Only approvals that were requested before this time"
    )
    waits_for: Literal["me"] | None = Field(
        None, description="Only pending approvals that the caller may decide and has not voted on"
    )


class Query(Filters):
    """The query parameters of a page."""

    limit: int = Field(100, ge=1, le=1000, description="How many approvals a page has at most")
    after: str | None = Field(None, max_length=1000, description="`next` of the page before")


class VoteQuery(BaseModel):
    """The query parameters that name a vote."""

    model_config = ConfigDict(extra="forbid")

    by: str | None = Field(None, description="The user for whom the caller has voted, as in a vote")


_ID = in_path("approval_id", "The approval's id, from approval.requested")
_FILTERS = in_query(Query)
_operation = partial(Operation, tag="approvals")


class Api:
    """The handlers of the routes. `take_vote` counts a vote, and has its decision sent later."""

    def __init__(self, bus: Bus, approvals: Approvals, feed: Feed, *, take_vote: TakeVote) -> None:
        self._bus = bus
        self._approvals = approvals
        self._feed = feed
        self._take_vote = take_vote
        self._turns = ReadScheduler()

    @serves(
        _operation(
            method="GET",
            path="/v1/approvals",
            summary="The caller's approvals: pending ones with a deadline first, then the newest",
            answers={200: json("A page", an_object(approvals=a_list(OBJECT), next=NULLABLE))},
            scopes=("read",),
            parameters=_FILTERS,
        )
    )
    async def index(self, request: Request) -> Response | None:
        query, who = read_query(request, Query), identity_of(request)
        page = await while_connected(request.receive, self._page(who, query))
        if page is None:
            return None
        reader = _reader(who)
        records = [reader.seen(each).model_dump(exclude_none=True) for each in page.approvals]
        return json_answer({"approvals": records, "next": page.next})

    @serves(
        _operation(
            method="GET",
            path="/v1/approvals/count",
            summary="How many approvals a list would have",
            description=f"At most {MAX_COUNTED} are counted; `complete` is false with more.",
            answers={200: json("The number", an_object(count={"type": "integer"}, complete=FLAG))},
            scopes=("read",),
            parameters=tuple(each for each in _FILTERS if each.name not in ("limit", "after")),
        )
    )
    async def count(self, request: Request) -> Response | None:
        query = read_query(request, Filters).model_dump(exclude_none=True)
        whole = Query(**query, limit=MAX_COUNTED)
        page = await while_connected(request.receive, self._page(identity_of(request), whole))
        if page is None:
            return None
        return json_answer({"count": len(page.approvals), "complete": page.next is None})

    @serves(
        _operation(
            method="GET",
            path="/v1/approvals/events",
            summary="The changes of the approvals that the caller may see, as they happen",
            description="Each frame has the approval's record after a change, and is named "
            "`approval.requested`, `approval.voted`, `approval.taken_back`, `approval.remarked`, "
            "`approval.escalated`, `approval.reminded`, `approval.decided`, `approval.expired` or "
            "`approval.withdrawn`. The first frame is named `ready`. Of "
            "several changes that a client missed, it gets the last one of each approval. To miss "
            "nothing, open the stream, wait for `ready`, then list.",
            answers={
                200: Answer(
                    "The stream; or what is there after the cursor, where JSON is accepted",
                    {SSE: TEXT, JSON: an_object(changes=a_list(OBJECT), next=TEXT)},
                )
            },
            scopes=("read",),
            parameters=(
                Parameter(
                    "Last-Event-ID", "The `id` of the last frame that was got", TEXT, "header"
                ),
                Parameter("after", "The same, for clients that set no headers", TEXT),
            ),
            refusals=(410,),
        )
    )
    async def events(self, request: Request) -> Response:
        """Return the changes after a cursor, or from now on.

        The refusals, in their order: 403 for a stream token that may not read `approval.*`; 429 for
        too many streams; 422 for no cursor; 410 for one beyond the end.
        """
        who = identity_of(request)
        if who.grant is not None:
            who.grant.check_subjects(["approval.*"])
        count_stream(request.scope)
        cursor = request.headers.get("last-event-id") or request.query_params.get("after")
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
            raise Problem(422, "after: must be the `id` of an earlier frame")
        end = await self._feed.end()
        after = int(cursor) if cursor is not None else end
        if after > end:
            raise Problem(410, "NATS has lost changes since this cursor: list the approvals again")
        reader = _reader(who)
        if JSON in request.headers.get("accept", ""):
            return json_answer(changes.page(await self._feed.read(after), reader))
        return changes.response(request, self._feed, reader, after)

    @serves(
        _operation(
            method="GET",
            path="/v1/approvals/{approval_id}",
            summary="One approval",
            answers={200: json("The approval", ApprovalRecord)},
            scopes=("read",),
            parameters=(_ID,),
            refusals=(404,),
        )
    )
    async def show(self, request: Request) -> Response:
        """Return the approval's record. If the caller is not the requester, audit the view."""
        record = await self._visible(request)
        who = identity_of(request)
        ip = request.client.host if request.client is not None else None
        seen_by = decider_of(who, _channel(request, who), who.user_id)
        await self._approvals.audit.viewed(record, seen_by, ip)
        return _shown(who, record)

    @serves(
        _operation(
            method="GET",
            path="/v1/approvals/{approval_id}/audit",
            summary="Who asked, saw, decided and ran what, as a chain of hashes",
            answers={
                200: json(
                    "The records of the approval, the hash of the last record of its run, and "
                    "what is wrong with the chain of its run",
                    an_object(
                        approval_id=TEXT,
                        run_id=TEXT,
                        records=a_list(OBJECT),
                        head=NULLABLE,
                        intact=FLAG,
                        findings=a_list(TEXT),
                    ),
                )
            },
            scopes=("read",),
            parameters=(_ID,),
            refusals=(404,),
        )
    )
    async def audit(self, request: Request) -> Response:
        record = await self._visible(request)
        history = await self._approvals.audit.history(record)
        hidden = () if sees_whole(identity_of(request), record) else ("details",)
        records = [
            {name: value for name, value in link.shown().items() if name not in hidden}
            for link in history.records
        ]
        return json_answer(
            {
                "approval_id": record.approval_id,
                "run_id": record.run_id,
                "records": records,
                "head": history.head,
                "intact": not history.findings,
                "findings": [str(each) for each in history.findings],
            }
        )

    @serves(
        _operation(
            method="GET",
            path="/v1/approvals/{approval_id}/lines",
            summary="The last lines of the run that asks, for those who may see the approval",
            answers={200: json("The lines, the oldest first", an_object(lines=a_list(OBJECT)))},
            scopes=("read",),
            parameters=(_ID,),
            refusals=(404,),
        )
    )
    async def lines(self, request: Request) -> Response:
        record = await self._visible(request)
        lines = await last_lines(self._bus, record.run_id)
        return json_answer({"lines": [asdict(line) for line in lines]})

    @serves(
        _operation(
            method="POST",
            path="/v1/approvals/{approval_id}/decision",
            summary="Decide all items of an approval",
            answers={200: json("The decided approval", ApprovalRecord)},
            scopes=("decide",),
            parameters=(_ID,),
            body=DecisionBody,
            example={"items": [{"item_id": "call-1", "decision": "approve"}]},
            refusals=(404, 409),
        )
    )
    async def decide(self, request: Request) -> Response:
        """Take the decision, and return the approval's record with the decision.

        The refusals, in their order (401 and 403 for a missing scope come before the handler):

        1. 404: there is no such approval, or the caller may not see it.
        2. 413, 415, 422: the body is too large, no JSON, or no decision.
        3. 403: the caller may not act for the user in `by`.
        4. 422: the short form, where an item needs a value.
        5. 404, 409: the approval is gone, has ended, or its deadline has passed.
        6. 403, 409, 422: the vote does not count; `outcomes.votes.with_vote` has the order.
        """
        who = identity_of(request)
        record = await self._visible(request)
        body = await read_model(request, DecisionBody)
        decider = decider_of(who, _channel(request, who), deciding_user(who, body.by))
        vote = body.request(record, decider)
        reply = await self._take_vote(record.approval_id, vote)
        if reply.status != 200 or reply.approval is None:
            raise Problem(reply.status, reply.detail)
        return _shown(who, reply.approval)

    @serves(
        _operation(
            method="DELETE",
            path="/v1/approvals/{approval_id}/decision",
            summary="Take back the caller's vote, before the approval is decided",
            answers={200: json("The approval without the vote", ApprovalRecord)},
            scopes=("decide",),
            parameters=(_ID, *in_query(VoteQuery)),
            refusals=(404, 409),
        )
    )
    async def take_back(self, request: Request) -> Response:
        """Take the caller's vote back, and return the approval's record. A repeat changes nothing.

        The refusals, in their order (401 and 403 for a missing scope come before the handler): 422
        for a wrong query; 404 as `decide`; 403, the caller may not act for the user in `by`; 409,
        the approval has ended, or the caller has not voted.
        """
        query = read_query(request, VoteQuery)
        await ignore_body(request)
        return await self._amended(request, await self._visible(request), query.by, without_vote)

    @serves(
        _operation(
            method="POST",
            path="/v1/approvals/{approval_id}/remarks",
            summary="Say something about an approval without deciding it",
            description="Whoever may decide may ask the user whose run asks a `question`, or hand "
            "it over to another person whom the policy lets decide; this user may `answer`.",
            answers={200: json("The approval with the remark", ApprovalRecord)},
            scopes=(),
            any_scope=("decide", "start"),
            parameters=(_ID,),
            body=RemarkBody,
            example={"kind": "question", "text": "Which invoice is it for?"},
            refusals=(404, 409),
        )
    )
    async def remark(self, request: Request) -> Response:
        """Add a remark, and return the approval's record. The refusals are those of `decide`, and
        `outcomes.remarks.with_remark` has the last of them."""
        record = await self._visible(request)
        body = await read_model(request, RemarkBody)
        said = body.model_dump(exclude={"by"})
        return await self._amended(request, record, body.by, partial(with_remark, **said))

    async def _amended(
        self, request: Request, record: ApprovalRecord, by: str | None, change: Amendment
    ) -> Response:
        who = identity_of(request)
        decider = decider_of(who, _channel(request, who), deciding_user(who, by))
        reply = await self._approvals.amend(record.approval_id, decider, change)
        if reply.status != 200 or reply.approval is None:
            raise Problem(reply.status, reply.detail)
        return _shown(who, reply.approval)

    async def _page(self, who: Identity, query: Query) -> Page:
        wanted = query.model_dump(exclude={"limit", "after", "waits_for"}, exclude_none=True)
        viewer = viewer_of(who, waits=query.waits_for is not None)
        after = ListPosition.parse(query.after) if query.after is not None else None
        async with self._turns.of(who.tenant_user):
            return await self._approvals.list.page(viewer, wanted, after, limit=query.limit)

    async def _visible(self, request: Request) -> ApprovalRecord:
        """Return the approval in the path. Raises Problem 404 if the caller may not see it."""
        who = identity_of(request)
        return await found(self._approvals, request, partial(may_see_approval, who))


def _channel(request: Request, who: Identity) -> Channel:
    """Return the channel by which the caller decides. Only Penstock's own pages send the cookie.
    Any caller can claim to be the console or the CLI, since no channel gives rights."""
    if who.kind == "cookie" or request.headers.get(CLIENT_HEADER) == CONSOLE:
        return "page"
    is_cli = request.headers.get("user-agent", "").startswith("penstock-cli/")
    return "cli" if is_cli else "api"


def _reader(who: Identity) -> changes.Reader:
    return changes.Reader(partial(may_see_approval, who), partial(sees_whole, who))


def _shown(who: Identity, record: ApprovalRecord) -> Response:
    return Response(_reader(who).seen(record).dump(), media_type="application/json")


async def found(
    approvals: Approvals, request: Request, sees: Callable[[ApprovalRecord], bool]
) -> ApprovalRecord:
    """Return the approval whose id is in the path. Raises Problem 404 if there is no such approval,
    or if the caller does not see it."""
    approval_id, caller = request.path_params["approval_id"], identity_of(request).user_id
    record = await approvals.shown_to(caller, approval_id, sees)
    if record is None:
        raise Problem(404, f"there is no approval {approval_id}")
    return record
