"""Serve the routes of links: the page of a link, and the routes that make and revoke links."""

from __future__ import annotations

import hmac
import logging
from functools import partial
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from penstock.bus import Bus, BusError
from penstock.bus.records.approvals import DecideRequest
from penstock.service.deciders import decider_of
from penstock.web.answers import json_answer, time_text
from penstock.web.auth import identity_of
from penstock.web.bodies import ignore_body, read_body, read_model
from penstock.web.operation import (
    NULLABLE,
    TEXT,
    Answer,
    Operation,
    an_object,
    in_path,
    json,
    serves,
)
from penstock.web.problems import ErrorShape, Problem
from penstock_approvals.api.approvals import TakeVote, found
from penstock_approvals.inbox.last_lines import last_lines
from penstock_approvals.lifecycle.decisions import Amendment, Approvals
from penstock_approvals.links import form, page
from penstock_approvals.links.page import View
from penstock_approvals.links.store import (
    LinkRecord,
    LinkRefused,
    Links,
    State,
    may_take_back,
    state_of,
)
from penstock_approvals.outcomes.remarks import with_remark
from penstock_approvals.outcomes.votes import without_vote
from penstock_approvals.policy.deciding_rights import votes_of

log = logging.getLogger(__name__)

HTML: Final = "text/html"
FORM: Final = "application/x-www-form-urlencoded"
MAX_FORM_BYTES: Final = 256 * 1024
DAY_S: Final = 86_400.0
MAX_LIFETIME_S: Final = 30 * DAY_S


PAGE: Final = ErrorShape(
    "page",
    "text/html",
    {"type": "string"},
    lambda problem: {"title": "That did not work", "detail": problem.detail},
    lambda body: page.message(body["title"], body["detail"]).encode(),
    page.HEADERS,
)


class LinkRequestBody(BaseModel):
    """Who decides with the link, and how long the link is valid."""

    model_config = ConfigDict(extra="forbid")

    user: str | None = Field(None, min_length=1, max_length=256, description="The person")
    role: str | None = Field(
        None, min_length=1, max_length=256, description="The person's role; without user, a group"
    )
    lifetime_s: float = Field(
        DAY_S, ge=1, le=MAX_LIFETIME_S, description="The link ends earlier at the deadline"
    )


_SECRET: Final = in_path("secret", "The secret of the link")
_ID: Final = in_path("approval_id", "The approval's id, from approval.requested")
_page: Final = partial(
    Operation,
    path="/d/{secret}",
    tag="links",
    scopes=(),
    public=True,
    errors=PAGE,
    parameters=(_SECRET,),
)
_LINK: Final = an_object(id=TEXT, url=TEXT, expires_at=TEXT)
_LINK["properties"] |= {"user": NULLABLE, "role": NULLABLE}


class LinkRoutes:
    """The page of a link, and the handlers of administrators, who make and revoke links.

    A GET never decides, so a mail scanner that opens the link cannot decide. People reach the
    service at `public_url`; without it, links are paths.
    """

    def __init__(
        self, bus: Bus, approvals: Approvals, take_vote: TakeVote, *, public_url: str | None
    ) -> None:
        self._bus = bus
        self._approvals = approvals
        self._take_vote = take_vote
        self._links = Links(bus, approvals.audit, public_url)

    @serves(
        _page(
            method="GET",
            summary="The page of a one-time link: it shows the request, and never decides",
            answers={200: Answer("The page", {HTML: TEXT})},
            refusals=(404,),
        )
    )
    async def show(self, request: Request) -> Response:
        link = await self._link(request)
        view = await self._view(link)
        if view.state is State.OPEN and view.record is not None:
            ip = request.client.host if request.client is not None else None
            await self._approvals.audit.viewed(view.record, link.decider(), ip)
        return _html(view)

    @serves(
        _page(
            method="POST",
            summary="Decide by a one-time link, ask, or take the vote back that was given by it",
            answers={303: Answer("Done; the page says so"), 200: Answer("-", {HTML: TEXT})},
            refusals=(403, 404, 409),
            body=an_object(csrf=TEXT, decision=TEXT),
            body_types=(FORM,),
        )
    )
    async def act(self, request: Request) -> Response:
        """Decide as the form says, and redirect the browser to the link's page.

        The refusals, in their order: 404 for an unknown link; 403 for a form of another site; 413,
        415, 422 for what is no form; 403 for a form of another link; then a page with 409 if the
        link cannot be used so now (`links.store.state_of`), with 422 if the tool's name was not
        typed or a question has no text, or with the status of the refused vote.
        """
        link = await self._link(request)
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Problem(403, "this form is not from our page; open the link again")
        sent = await _form(request)
        if not hmac.compare_digest(sent.signature.encode(), link.signature().encode()):
            raise Problem(403, "this form is not from the page of this link; open the link again")
        view = await self._view(link)
        if sent.decision == "take-back" and view.may_take_back:
            return await self._amended(request, link, sent, without_vote)
        if view.state is not State.OPEN or view.record is None or sent.decision == "take-back":
            return _html(view, 409)
        if (problem := form.problem_of(sent, view.record)) is not None:
            return _html(await self._view(link, problem=problem, refused=sent), 422)
        if sent.decision == "ask":
            question = partial(with_remark, kind="question", text=sent.note)
            return await self._amended(request, link, sent, question)
        decision = DecideRequest(
            decider=link.decider(),
            note=sent.note,
            digest=link.request_digest,
            items=form.decisions(view.record.items, sent),
            # If a browser sends the form twice, both requests get the same answer.
            idempotency_key=f"link:{link.id}:{len(votes_of(view.record, link.decider()))}",
        )
        reply = await self._take_vote(link.approval_id, decision)
        if reply.status == 200:
            await self._note_use(link, sent.decision)
            return _redirected(request)
        after = await self._view(link, problem=reply.detail, refused=sent)
        return _html(after, reply.status)

    @serves(
        Operation(
            method="POST",
            path="/v1/approvals/{approval_id}/links",
            summary="Make a one-time link with which a person decides the approval",
            tag="links",
            answers={201: json("The link, this once", _LINK)},
            scopes=("administer",),
            parameters=(_ID,),
            body=LinkRequestBody,
            example={"user": "alice"},
            refusals=(404, 409),
        )
    )
    async def create(self, request: Request) -> Response:
        record = await found(self._approvals, request, lambda _: True)
        body = await read_model(request, LinkRequestBody, MAX_FORM_BYTES)
        maker = decider_of(identity_of(request), "api")
        try:
            url, link = await self._links.make(maker, record, **body.model_dump())
        except LinkRefused as refused:
            raise Problem(refused.status, str(refused)) from refused
        shown = {
            "id": link.id,
            "url": url,
            "expires_at": time_text(link.expires_at),
            "user": link.user,
            "role": link.role,
        }
        return json_answer(shown, 201)

    @serves(
        Operation(
            method="DELETE",
            path="/v1/approvals/{approval_id}/links/{link_id}",
            summary="Revoke a one-time link",
            tag="links",
            answers={204: Answer("The link opens nothing any more")},
            scopes=("administer",),
            parameters=(_ID, in_path("link_id", "The link's id, which is not its secret")),
            refusals=(404,),
        )
    )
    async def revoke(self, request: Request) -> Response:
        record = await found(self._approvals, request, lambda _: True)
        await ignore_body(request)
        link_id = request.path_params["link_id"]
        if not await self._links.revoke(record.approval_id, link_id):
            raise Problem(404, "there is no such link")
        return Response(status_code=204)

    async def _amended(
        self, request: Request, link: LinkRecord, sent: form.Form, change: Amendment
    ) -> Response:
        reply = await self._approvals.amend(link.approval_id, link.decider(), change)
        if reply.status == 200:
            return _redirected(request)
        return _html(await self._view(link, problem=reply.detail, refused=sent), reply.status)

    async def _link(self, request: Request) -> LinkRecord:
        link = await self._links.find(request.path_params["secret"])
        if link is None:
            raise Problem(404, "there is no such link, or it is no longer kept. Ask for a new one")
        return link

    async def _view(
        self, link: LinkRecord, problem: str | None = None, refused: form.Form | None = None
    ) -> View:
        record = await self._approvals.records.get(link.approval_id)
        now = self._bus.clock.now()
        state = state_of(link, record, now)
        is_open = state is State.OPEN and record is not None
        lines = await last_lines(self._bus, record.run_id) if is_open and record else ()
        entered = refused.fields() if refused else None
        may_go_back = may_take_back(link, record, now)
        return View(link, state, record, now, may_go_back, lines, problem, entered)

    async def _note_use(self, link: LinkRecord, decision: Literal["approve", "reject"]) -> None:
        try:
            await self._links.note_use(link, decision)
        except BusError as error:
            # The vote is counted, so the link cannot be used again, although its use is not
            # recorded. The page then says that the approval was decided, or that the person has
            # voted, but not that this link was used.
            log.warning("approval %s: a link's use is not noted: %s", link.approval_id, error)


def _redirected(request: Request) -> Response:
    return Response(None, 303, {**page.HEADERS, "location": request.url.path})


async def _form(request: Request) -> form.Form:
    """Return the form. Raises Problem: 413, 415 for another media type, 422 for a wrong form."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != FORM:
        raise Problem(415, f"send the form as {FORM}")
    try:
        return form.parse(await read_body(request, MAX_FORM_BYTES))
    except form.InvalidForm as error:
        raise Problem(422, str(error)) from error


def _html(view: View, status: int = 200) -> Response:
    return Response(page.page(view).encode(), status, page.HEADERS)
