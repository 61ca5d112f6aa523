"""One-time links: a GET never decides, a POST decides once, and the page shows the state."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import httpx
import orjson
import pytest
import pytest_asyncio

from penstock.bus import BusUnavailable, Msg, streams
from penstock.bus.records.approvals import (
    ApprovalNews,
    ApprovalRecord,
    Deciders,
    LinkReply,
    LinkRequest,
)
from penstock.bus.subjects import command, link
from penstock.runs.decide import request_link
from penstock_approvals.audit.trail import ApprovalAudit
from penstock_approvals.links.form import InvalidForm, decisions, parse
from penstock_approvals.links.store import Links
from support.drive.secured import Secured, bearer, secured
from support.drive.waiting import eventually
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

FINANCE = [{"roles": ["finance"], "excluded": ["requester"]}]
HOSTILE = "a\u202ecod.exe\u200b <img src=x onerror=alert(1)><script>alert(2)</script>"
ITEM: dict[str, Any] = {
    "item_id": "c1",
    "kind": "confirmation",
    "tool": "transfer",
    "args": {"to": HOSTILE, "amount": 5, "b<i>": {"z": 1, "a": [True, None]}},
}
FORM = {"content-type": "application/x-www-form-urlencoded"}
ROOT = bearer("root", scope="administer read")


@pytest.fixture(scope="module")
def nats_of_links(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("links"), name="nats of links")
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(nats_of_links: NatsServer) -> AsyncIterator[Secured]:
    async with secured(nats_of_links.url) as running:
        yield running


async def paused(penstock: Secured, **fields: Any) -> tuple[PretendRun, str]:
    """Make a run of Alice's that waits for an approval of finance."""
    run = await penstock.live()
    fields = {"items": [ITEM], "deciders": FINANCE, **fields}
    return run, await penstock.approval(run, **fields)


async def linked(penstock: Secured, approval_id: str, **body: Any) -> str:
    """Make a link for Grace of finance; return its path."""
    made = await penstock.link(approval_id, **{"user": "grace", "role": "finance", **body})
    assert re.fullmatch(r"/d/pln_[A-Za-z0-9_-]{43}", made["url"])
    return str(made["url"])


async def opened(penstock: Secured, path: str) -> tuple[str, str]:
    """Open the page; return it, and the signature of its form."""
    answer = await penstock.http.get(path)
    assert answer.status_code == 200
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', answer.text)
    return answer.text, found[1] if found else ""


async def act(penstock: Secured, path: str, headers: Any = None, **fields: str) -> httpx.Response:
    """Open the page and send its form."""
    _, signature = await opened(penstock, path)
    body = urlencode({"csrf": signature, "decision": "approve", **fields})
    return await penstock.http.post(path, content=body, headers={**FORM, **(headers or {})})


async def record(penstock: Secured, approval_id: str) -> ApprovalRecord:
    answer = await penstock.http.get(f"/v1/approvals/{approval_id}", headers=ROOT)
    return ApprovalRecord.model_validate_json(answer.content)


# the page


async def test_the_page_shows_the_request_whole_and_foreign_text_as_text(
    penstock: Secured,
) -> None:
    run, approval_id = await paused(penstock)
    await run.text("shall I pay?")
    shown, signature = await opened(penstock, await linked(penstock, approval_id))
    assert "a<mark>\\u{202e}</mark>cod.exe<mark>\\u{200b}</mark> &lt;img src=x" in shown
    assert "<script" not in shown
    assert "<img" not in shown
    plain = html.unescape(re.sub(r"<[^>]+>", " ", shown))
    assert re.search(r"amount\s+5\s.*b<i>\s.*a\s+\[0\]\s+true\s+\[1\]\s+null\s.*z\s+1", plain)
    for word in ("transfer", "alice", "assistant", "grace", "finance"):
        assert word in plain
    assert signature


async def test_the_page_loads_nothing_is_not_kept_and_names_its_address_to_nobody(
    penstock: Secured,
) -> None:
    _, approval_id = await paused(penstock)
    answer = await penstock.http.get(await linked(penstock, approval_id))
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "form-action 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert "base-uri 'none'" in policy
    assert "unsafe" not in " ".join(policy)
    assert answer.headers["cache-control"] == "no-store"
    # `strict-origin` sends the origin alone, never the path with the secret.
    assert answer.headers["referrer-policy"] == "strict-origin"
    assert answer.headers["x-robots-tag"] == "noindex"
    assert answer.headers["x-frame-options"] == "DENY"
    assert not re.search(r"<(script|img|link|iframe|object)\b", answer.text)
    assert not re.search(r"<[^>]*\b(src|href|action|on\w+)=", answer.text)


async def test_a_hundred_gets_and_heads_decide_nothing(penstock: Secured) -> None:
    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id)
    before = await record(penstock, approval_id)
    for number in range(100):
        method = "HEAD" if number % 4 == 3 else "GET"
        query = ("", "?decision=approve", "?approve=1&csrf=x", "")[number % 4]
        answer = await penstock.http.request(method, path + query)
        assert answer.status_code == 200
        assert bool(answer.content) == (method == "GET")
    assert await record(penstock, approval_id) == before
    for method in ("PUT", "PATCH", "DELETE"):
        assert (await penstock.http.request(method, path)).status_code in (401, 405)
    assert (await act(penstock, path)).status_code == 303


# deciding


@pytest.mark.parametrize(
    ("decision", "outcome", "title"),
    [
        ("approve", "approved", "You have approved this"),
        ("reject", "rejected", "You have rejected"),
    ],
)
async def test_a_form_decides_once_and_the_record_names_the_person(
    penstock: Secured, decision: str, outcome: str, title: str
) -> None:
    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id)
    answer = await act(penstock, path, decision=decision, note="checked\r\nwith Ada ")
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    decided = (await record(penstock, approval_id)).decision
    assert decided is not None
    assert (decided.outcome, decided.by, decided.note) == (outcome, "grace", "checked\nwith Ada")
    assert decided.decider is not None
    assert (decided.decider.channel, decided.decider.roles) == ("link", ["finance"])
    assert decided.decider.token_id is not None
    shown, signature = await opened(penstock, path)
    assert title in shown
    assert f"The request is {outcome} by" in re.sub("<[^>]+>", "", shown)
    assert not signature
    assert "cod.exe" not in shown


async def test_a_link_decides_the_request_of_a_workflow_which_gets_the_news(
    penstock: Secured,
) -> None:
    run = await penstock.live()
    approval_id = await penstock.approval(run, items=[ITEM], deciders=FINANCE, target="workflows")
    got: asyncio.Queue[ApprovalNews] = asyncio.Queue()

    async def noted(msg: Msg) -> None:
        got.put_nowait(ApprovalNews.model_validate_json(msg.data))

    # The service `workflows` takes the message from COMMANDS, so the test listens on the subject.
    listening = await penstock.bus.subscribe(command("workflows", "continue", run.run_id), noted)
    path = await linked(penstock, approval_id)
    assert (await act(penstock, path)).status_code == 303
    async with asyncio.timeout(60):
        asked, decided = await got.get(), await got.get()
    await listening.unsubscribe()
    assert (asked.approval_id, asked.news) == (approval_id, "asked")
    assert (decided.approval_id, decided.news) == (approval_id, "decided")
    assert [each.decision for each in decided.items or ()] == ["approve"]
    assert decided.event is not None
    assert decided.event["data"]["by"] == "grace"
    connectors = command("connector", "continue", run.run_id)
    assert await penstock.bus.tail(streams.COMMANDS, connectors) is None


async def test_a_browser_that_sends_the_form_twice_decides_once(penstock: Secured) -> None:
    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id)
    _, signature = await opened(penstock, path)
    bodies = [
        urlencode({"csrf": signature, "decision": each}) for each in ("approve", "reject") * 10
    ]
    answers = await asyncio.gather(
        *(penstock.http.post(path, content=body, headers=FORM) for body in bodies)
    )
    statuses = [each.status_code for each in answers]
    assert set(statuses) <= {303, 409}
    decided = (await record(penstock, approval_id)).decision
    assert decided is not None
    wanted = 0 if decided.outcome == "approved" else 1
    assert next(number for number, status in enumerate(statuses) if status == 303) % 2 == wanted
    assert all(status == 409 for status in statuses[1 - wanted :: 2])


async def test_a_group_s_links_count_as_one_person(penstock: Secured) -> None:
    _, approval_id = await paused(penstock)
    first, second = [
        await linked(penstock, approval_id, user=None, role="finance") for _ in range(2)
    ]
    assert (await act(penstock, first)).status_code == 303
    shown, signature = await opened(penstock, second)
    assert "Already decided" in shown
    assert not signature
    decided = (await record(penstock, approval_id)).decision
    assert decided is not None
    assert decided.by == "link:finance"  # the group, and not one of its links


async def test_where_several_people_decide_a_link_names_one_of_them(penstock: Secured) -> None:
    """Otherwise a member of the group could vote by a link, and again under the member's name."""
    _, approval_id = await paused(penstock, need=2)
    path = f"/v1/approvals/{approval_id}/links"
    refused = await penstock.http.post(path, headers=ROOT, json={"role": "finance"})
    assert (refused.status_code, "2 people" in refused.text) == (422, True), refused.text
    used = await linked(penstock, approval_id)
    assert (await act(penstock, used)).status_code == 303
    assert (
        "The request is still open. It needs 2 people; 1 so far."
        in (await opened(penstock, used))[0]
    )
    shown, _ = await opened(penstock, await linked(penstock, approval_id))
    assert "You have decided this" in shown
    assert (await record(penstock, approval_id)).status == "pending"


async def test_a_question_can_be_asked_by_a_link_and_the_link_decides_afterwards(
    penstock: Secured,
) -> None:
    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id)
    empty = await act(penstock, path, decision="ask")
    assert (empty.status_code, "write your question" in empty.text) == (422, True)
    asked = await act(penstock, path, decision="ask", note="Which <b>invoice</b>?")
    assert asked.status_code == 303
    answer = {"kind": "answer", "text": "17"}
    url = f"/v1/approvals/{approval_id}/remarks"
    headers = bearer("alice", scope="start read decide")
    assert (await penstock.http.post(url, json=answer, headers=headers)).status_code == 200
    shown, _ = await opened(penstock, path)
    assert "question of <bdi>grace</bdi>" in shown
    assert "Which &lt;b&gt;invoice&lt;/b&gt;?" in shown
    assert '<bdi class="line">17</bdi>' in shown
    assert (await record(penstock, approval_id)).status == "pending"
    assert (await act(penstock, path)).status_code == 303
    assert (await record(penstock, approval_id)).status == "decided"


async def test_a_link_takes_back_the_vote_that_was_given_by_it_and_no_other(
    penstock: Secured,
) -> None:
    _, approval_id = await paused(penstock, need=2)
    mine, again, of_fred = [
        await linked(penstock, approval_id, user=user) for user in ("grace", "grace", "fred")
    ]
    assert (await act(penstock, mine)).status_code == 303
    shown, signature = await opened(penstock, mine)
    assert (signature != "", "Take back my decision" in shown) == (True, True)
    for other in (again, of_fred):
        # The page of another link of the same person, and of another person, has no such button.
        assert "Take back" not in (await opened(penstock, other))[0]
        link = await Links(penstock.bus, ApprovalAudit(penstock.bus)).find(
            other.removeprefix("/d/")
        )
        assert link is not None
        body = urlencode({"csrf": link.signature(), "decision": "take-back"})
        refused = await penstock.http.post(other, content=body, headers=FORM)
        assert refused.status_code == 409
    of_grace = f"/v1/approvals/{approval_id}/decision"
    plain = bearer("grace", scope="read decide", roles=["finance"])
    assert (await penstock.http.delete(of_grace, headers=plain)).status_code == 409
    assert (await record(penstock, approval_id)).votes[0].taken_back is None
    assert (await act(penstock, mine, decision="take-back")).status_code == 303
    shown, _ = await opened(penstock, mine)
    assert "2 people; 0 so far: nobody" in shown, "the link can be used again"
    assert (await act(penstock, mine, decision="reject")).status_code == 303
    decided = await record(penstock, approval_id)
    assert decided.decision is not None
    assert (decided.decision.by, decided.decision.outcome) == ("grace", "rejected")
    body = urlencode({"csrf": signature, "decision": "take-back"})
    late = await penstock.http.post(mine, content=body, headers=FORM)
    assert (late.status_code, "rejected by <bdi>grace" in late.text) == (409, True)


async def test_the_page_shows_who_has_voted_and_the_remaining_time(penstock: Secured) -> None:
    now = penstock.bus.clock.now()
    for remaining, text in (
        (timedelta(seconds=40), "in less than a minute"),
        (timedelta(minutes=42, seconds=30), "in 42 min"),
        (timedelta(hours=5, seconds=30), "in 5 h"),
        (timedelta(days=2, hours=3, minutes=1), "in 2 d 3 h"),
    ):
        _, approval_id = await paused(penstock, need=2, expires_at=(now + remaining).isoformat())
        shown, _ = await opened(penstock, await linked(penstock, approval_id))
        assert f"UTC, {text}</dd>" in shown
        assert "2 people; 0 so far: nobody" in shown
    await act(penstock, await linked(penstock, approval_id))
    shown, _ = await opened(penstock, await linked(penstock, approval_id, user="fred"))
    assert "2 people; 1 so far: <bdi>grace</bdi>" in shown
    assert "Others can decide by" not in shown
    shown, _ = await opened(penstock, await linked(penstock, approval_id))
    assert "2 people; 1 so far. Others can decide by" in shown


async def test_an_answer_that_does_not_fit_is_kept_in_the_form(penstock: Secured) -> None:
    schema = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}
    item = {"item_id": "i1", "kind": "input", "input_schema": schema}
    _, approval_id = await paused(penstock, items=[item])
    path = await linked(penstock, approval_id)
    shown, _ = await opened(penstock, path)
    assert 'value="reject"' not in shown
    wrong = await act(penstock, path, **{"value-0": '{"town": "<Rome>"}', "note": "a note"})
    assert wrong.status_code == 422
    assert "city" in wrong.text
    assert "{&quot;town&quot;: &quot;&lt;Rome&gt;&quot;}</textarea>" in wrong.text
    assert ">a note</textarea>" in wrong.text
    assert (await act(penstock, path, **{"value-0": '{"city": "Rome"}'})).status_code == 303
    decided = (await record(penstock, approval_id)).decision
    assert decided is not None
    assert decided.items[0].value == {"city": "Rome"}


async def test_a_budget_is_raised_by_one_of_the_amounts_that_the_page_offers(
    penstock: Secured,
) -> None:
    amounts = ["1.00 EUR", "5.00 EUR"]
    item = {
        "item_id": "budget",
        "kind": "budget",
        "description": "May it use more?",
        "args": {"budget": "researcher-run", "used": 2_000_000},
        "input_schema": {"type": "string", "enum": amounts},
    }
    _, approval_id = await paused(penstock, items=[item])
    path = await linked(penstock, approval_id)
    shown, _ = await opened(penstock, path)
    assert "<option>1.00 EUR</option><option>5.00 EUR</option></select>" in shown
    assert 'value="reject"' in shown
    assert (await act(penstock, path, **{"value-0": "500.00 EUR"})).status_code == 422
    assert (await act(penstock, path, **{"value-0": "5.00 EUR"})).status_code == 303
    decided = (await record(penstock, approval_id)).decision
    assert decided is not None
    assert decided.items[0].value == "5.00 EUR"


async def test_a_dangerous_call_is_approved_only_with_its_name_typed_and_rejected_without(
    penstock: Secured,
) -> None:
    ruling = {"item_id": "c1", "rule_id": "danger", "outcome": "ask", "danger": True}
    for decision, typed, status in (
        ("approve", "", 422),
        ("approve", "transfers", 422),
        ("approve", " transfer ", 303),
        ("reject", "", 303),
    ):
        _, approval_id = await paused(penstock, rulings=[ruling])
        path = await linked(penstock, approval_id)
        shown, _ = await opened(penstock, path)
        assert "To approve it, type <bdi>transfer</bdi>" in shown
        answer = await act(penstock, path, decision=decision, typed=typed, note="a note")
        assert answer.status_code == status, (decision, typed)
        if status == 422:
            assert "type transfer into the field" in answer.text
            assert ">a note</textarea>" in answer.text
            assert (await record(penstock, approval_id)).status == "pending"


async def test_each_dangerous_name_is_typed_as_the_page_shows_it(penstock: Secured) -> None:
    items = [ITEM, ITEM | {"item_id": "c2", "tool": "purge\u202e"}]
    rulings = [
        {"item_id": each["item_id"], "rule_id": "danger", "outcome": "ask", "danger": True}
        for each in items
    ]
    _, approval_id = await paused(penstock, items=items, rulings=rulings)
    path = await linked(penstock, approval_id)
    for typed, status in (("transfer", 422), ("transfer, purge\\u{202e}", 303)):
        answer = await act(penstock, path, decision="approve", typed=typed)
        assert answer.status_code == status, typed


async def test_a_request_that_is_too_large_to_show_cannot_be_decided_here(
    penstock: Secured,
) -> None:
    item = ITEM | {"args": {"query": "<" * 300_000}}
    _, approval_id = await paused(penstock, items=[item])
    shown, signature = await opened(penstock, await linked(penstock, approval_id))
    assert "too large to be shown whole" in shown
    assert not signature


# what a link is good for


async def test_after_the_decision_of_another_the_page_says_so(penstock: Secured) -> None:
    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id)
    _, signature = await opened(penstock, path)
    body = {"items": [{"item_id": "c1", "decision": "reject"}], "digest": "d"}
    headers = bearer("fred", roles=["finance"])
    url = f"/v1/approvals/{approval_id}/decision"
    assert (await penstock.http.post(url, json=body, headers=headers)).status_code == 200
    late = await penstock.http.post(
        path, content=urlencode({"csrf": signature, "decision": "approve"}), headers=FORM
    )
    assert late.status_code == 409
    for shown in (late.text, (await opened(penstock, path))[0]):
        assert "Already decided" in shown
        assert "The request was rejected by fred" in re.sub("<[^>]+>", "", shown)
        assert "csrf" not in shown


@pytest.mark.parametrize(
    ("update", "title"),
    [
        ({"status": "withdrawn", "reason": "the run <b>ended</b>"}, "No longer needed"),
        ({"status": "expired"}, "Too late"),
        ({"expires_at": "2026-01-01T00:00:00.000Z"}, "Too late"),
        ({"digest": "other"}, "The request has changed"),
        ({"deciders": [{"roles": ["legal"]}]}, "Not for you"),
    ],
)
async def test_a_link_that_is_good_for_nothing_says_why_and_acts_not(
    penstock: Secured, update: dict[str, Any], title: str
) -> None:
    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id)
    _, signature = await opened(penstock, path)
    held = await record(penstock, approval_id)
    changed = ApprovalRecord.model_validate(held.model_dump() | update)
    await penstock.bus.bucket("approvals").put(approval_id, changed.dump())
    body = urlencode({"csrf": signature, "decision": "approve"})
    acted = await penstock.http.post(path, content=body, headers=FORM)
    assert acted.status_code == 409
    for shown in (acted.text, (await opened(penstock, path))[0]):
        assert f"<h1>{title}</h1>" in shown
        assert "<b>" not in shown
        assert "cod.exe" not in shown
    assert (await record(penstock, approval_id)).decision is None


async def test_a_link_expires_and_a_revoked_one_is_unknown(penstock: Secured) -> None:
    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id, lifetime_s=4)
    _, signature = await opened(penstock, path)
    await asyncio.sleep(4.1)
    body = urlencode({"csrf": signature, "decision": "approve"})
    assert (await penstock.http.post(path, content=body, headers=FORM)).status_code == 409
    assert "This link has expired" in (await opened(penstock, path))[0]
    made = await penstock.link(approval_id, user="grace", role="finance")
    revoke = f"/v1/approvals/{approval_id}/links/{made['id']}"
    assert (await penstock.http.delete(revoke, headers=ROOT)).status_code == 204
    assert (await penstock.http.get(made["url"])).status_code == 404
    assert (await penstock.http.delete(revoke, headers=ROOT)).status_code == 404
    assert (await record(penstock, approval_id)).decision is None


async def test_a_link_ends_with_the_deadline(penstock: Secured) -> None:
    deadline = penstock.bus.clock.now() + timedelta(seconds=90)
    expires_at = deadline.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    _, approval_id = await paused(penstock, expires_at=expires_at)
    made = await penstock.link(approval_id, user="grace", role="finance")
    assert made["expires_at"] == expires_at


# who may make links, and for whom


@pytest.mark.parametrize("scope", ["start read raw decide act-as automate", "read decide"])
async def test_only_an_administrator_makes_links(penstock: Secured, scope: str) -> None:
    _, approval_id = await paused(penstock)
    headers = bearer("alice", scope=scope, roles=["finance"])
    url = f"/v1/approvals/{approval_id}/links"
    answer = await penstock.http.post(url, json={"user": "grace"}, headers=headers)
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "user or role"),
        ({"user": "grace"}, "could not decide"),
        ({"user": "alice", "role": "finance"}, "could not decide"),
        ({"role": "legal"}, "could not decide"),
        ({"user": ""}, "user"),
        ({"user": "x", "lifetime_s": 0}, "lifetime_s"),
        ({"user": "x", "lifetime_s": 1e9}, "lifetime_s"),
    ],
)
async def test_a_link_that_could_decide_nothing_is_not_made(
    penstock: Secured, body: dict[str, Any], words: str
) -> None:
    _, approval_id = await paused(penstock)
    url = f"/v1/approvals/{approval_id}/links"
    answer = await penstock.http.post(url, json=body, headers=ROOT)
    assert answer.status_code == 422, answer.text
    assert words in answer.text


async def test_there_is_no_link_to_what_is_decided_or_not_there(penstock: Secured) -> None:
    _, approval_id = await paused(penstock)
    assert (await act(penstock, await linked(penstock, approval_id))).status_code == 303
    body = {"user": "grace", "role": "finance"}
    url = f"/v1/approvals/{approval_id}/links"
    assert (await penstock.http.post(url, json=body, headers=ROOT)).status_code == 409
    for unknown in (approval_id[:-4] + "0000", "no.such.key", "*"):
        url = f"/v1/approvals/{unknown}/links"
        assert (await penstock.http.post(url, json=body, headers=ROOT)).status_code == 404


@pytest.mark.parametrize(
    ("scopes", "approval", "given", "status"),
    [
        (["administer", "automate"], "it", {"role": "finance"}, 201),
        (["automate", "act-as", "decide"], "it", {"role": "finance"}, 403),
        (["administer"], "it", {"role": "legal"}, 422),
        (["administer"], "it", {}, 422),
        (["administer"], "it", {"role": "finance", "lifetime_s": 0}, 422),
        (["administer"], "another", {"role": "finance"}, 404),
    ],
)
async def test_another_service_gets_a_link_with_the_rights_of_the_user_it_acts_for(
    penstock: Secured, scopes: list[str], approval: str, given: dict[str, Any], status: int
) -> None:
    _, approval_id = await paused(penstock)
    asked = approval_id if approval == "it" else approval_id[:-4] + "0000"
    maker = {"name": "root", "scopes": scopes, "channel": "automation"}
    request = orjson.dumps({"maker": maker, **given})
    answer = await penstock.bus.request(link(asked), request, 5)
    reply = LinkReply.model_validate_json(answer.data)
    assert reply.status == status, reply.detail
    if status == 201:
        assert reply.url is not None
        assert (await act(penstock, reply.url)).status_code == 303
        assert await request_link(
            penstock.bus, asked, LinkRequest.model_validate_json(request)
        ) == (LinkReply(status=409, detail="the approval is decided, so a link decides nothing"))


OWN = {"user": "grace", "role": "finance"}


@pytest.mark.parametrize(
    ("maker", "given", "status"),
    [
        ({}, OWN, 201),
        ({}, OWN | {"user": "bob"}, 403),
        ({}, {"role": "finance"}, 403),
        ({"roles": ["legal"]}, OWN, 403),  # a role that the user has not
        ({"roles": ["legal"]}, OWN | {"role": "legal"}, 422),  # a role that does not decide
        ({"scopes": ["read", "start"]}, OWN, 403),
        ({"token_id": "t1", "token_maker": "root"}, OWN, 403),  # would not have the token's limits
    ],
)
async def test_the_edge_gets_a_link_for_its_caller_alone_with_the_callers_own_rights(
    penstock: Secured, maker: dict[str, Any], given: dict[str, Any], status: int
) -> None:
    _, approval_id = await paused(penstock)
    caller = {"name": "grace", "roles": ["finance"], "scopes": ["read", "decide"]}
    request = orjson.dumps({"maker": {**caller, "channel": "openai", **maker}, **given})
    answer = await penstock.bus.request(link(approval_id), request, 5)
    reply = LinkReply.model_validate_json(answer.data)
    assert reply.status == status, reply.detail


async def test_nats_never_gets_the_secret(penstock: Secured) -> None:
    _, approval_id = await paused(penstock)
    secret = (await linked(penstock, approval_id)).removeprefix("/d/")
    for entry in await penstock.bus.bucket("tokens").entries():
        assert secret not in entry.key
        assert secret.encode() not in entry.value


# forms of others, and who tries many


@pytest.mark.parametrize(
    ("headers", "fields", "status"),
    [
        ({}, {"csrf": ""}, 403),
        ({}, {"csrf": "0" * 64}, 403),
        ({}, {"csrf": "é"}, 403),
        ({"sec-fetch-site": "cross-site"}, {}, 403),
        ({"sec-fetch-site": "same-site"}, {}, 403),
        ({"origin": "https://evil.example"}, {}, 403),
        ({"origin": "null"}, {}, 403),
        ({"content-type": "text/plain"}, {}, 415),
        ({"content-type": "application/json"}, {}, 415),
        ({}, {"decision": ""}, 422),
        ({}, {"decision": "APPROVE"}, 422),
        ({}, {"note": "x" * 2001}, 422),
    ],
)
async def test_a_form_that_is_not_ours_decides_nothing_and_is_answered_with_a_page(
    penstock: Secured, headers: dict[str, str], fields: dict[str, str], status: int
) -> None:
    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id)
    answer = await act(penstock, path, headers, **fields)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert (await record(penstock, approval_id)).decision is None


async def test_the_form_of_one_link_does_not_fit_another(penstock: Secured) -> None:
    _, approval_id = await paused(penstock)
    first, second = [await linked(penstock, approval_id) for _ in range(2)]
    _, signature = await opened(penstock, first)
    assert (await act(penstock, second, csrf=signature)).status_code == 403
    own = {"sec-fetch-site": "same-origin", "origin": penstock.url}
    assert (await act(penstock, second, own)).status_code == 303


async def test_unknown_links_are_all_alike(nats_of_links: NatsServer) -> None:
    async with secured(nats_of_links.url) as penstock:
        _, approval_id = await paused(penstock)
        known = await linked(penstock, approval_id)
        await opened(penstock, known)
        texts = set()
        for path in (
            "/d/x",
            "/d/pln_" + "A" * 43,
            "/d/" + "A" * 47,
            "/d/service.x",
            known[:-1] + "_",
        ):
            answer = await penstock.http.get(path)
            assert answer.status_code == 404
            texts.add(answer.text)
        assert len(texts) == 1


async def test_a_decision_whose_mark_was_lost_is_taken_once_and_the_page_says_so(
    penstock: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed between the decision and the mark has the same effect."""

    async def away(*_: object) -> None:
        raise BusUnavailable("no connection")

    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id)
    _, signature = await opened(penstock, path)
    with monkeypatch.context() as broken:
        broken.setattr(Links, "note_use", away)
        assert (await act(penstock, path)).status_code == 303
    assert "Already decided" in (await opened(penstock, path))[0]
    body = urlencode({"csrf": signature, "decision": "reject"})
    assert (await penstock.http.post(path, content=body, headers=FORM)).status_code == 409
    decided = (await record(penstock, approval_id)).decision
    assert decided is not None
    assert decided.outcome == "approved"


async def test_the_audit_says_who_made_the_link_for_whom_and_who_saw_and_decided_by_it(
    penstock: Secured,
) -> None:
    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id)
    for _ in range(3):
        await opened(penstock, path)
    assert (await act(penstock, path)).status_code == 303

    async def entries() -> list[dict[str, Any]] | None:
        answer = await penstock.http.get(f"/v1/approvals/{approval_id}/audit", headers=ROOT)
        audit = answer.json()
        assert audit["intact"], audit["findings"]
        wanted = ("linked", "viewed", "decided")
        found = [each for each in audit["records"] if each["event"] in wanted]
        return found if len(found) > 2 else None

    made, *used = await eventually(entries)
    assert (made["event"], made["by"], made["channel"]) == ("linked", "root", "api")
    assert made["to"] == "grace"
    assert [(each["event"], each["by"], each["channel"]) for each in used] == [
        ("viewed", "grace", "link"),
        ("decided", "grace", "link"),
    ]
    # Both name the link that was made.
    assert {each["token_id"] for each in used} == {made["key"].rpartition(".")[2]}


async def test_no_link_is_handed_out_that_the_audit_does_not_name(
    penstock: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise BusUnavailable("no connection")

    _, approval_id = await paused(penstock)
    monkeypatch.setattr(ApprovalAudit, "linked", away)
    path = f"/v1/approvals/{approval_id}/links"
    answer = await penstock.http.post(path, headers=ROOT, json={"user": "grace", "role": "finance"})
    assert answer.status_code == 503
    assert "url" not in answer.json()


async def test_an_unavailable_store_gives_a_page_with_a_text(
    penstock: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise BusUnavailable("no connection")

    _, approval_id = await paused(penstock)
    path = await linked(penstock, approval_id)
    monkeypatch.setattr(Links, "find", away)
    answer = await penstock.http.get(path)
    assert answer.status_code == 503
    assert "try again" in answer.text
    assert answer.headers["content-type"].startswith("text/html")


# the run's last lines


async def test_a_caller_who_sees_the_approval_gets_the_last_lines_and_not_the_run(
    penstock: Secured,
) -> None:
    run, approval_id = await paused(penstock)
    await run.say("llm.tool_call", tool="get_rate", args={"z": 1, "a": 2}, tool_call_id="t")
    await run.say("llm.message_completed", message_id="m", role="assistant", content="x" * 5000)
    headers = bearer("grace", roles=["finance"])
    answer = await penstock.http.get(f"/v1/approvals/{approval_id}/lines", headers=headers)
    lines = {line["type"]: line["text"] for line in answer.json()["lines"]}
    assert lines["llm.tool_call"] == 'get_rate {"a":2,"z":1}'
    assert lines["llm.message_completed"] == "x" * 1000 + "…"
    assert (await penstock.http.get(f"/v1/runs/{run.run_id}", headers=headers)).status_code == 404
    stranger = await penstock.http.get(f"/v1/approvals/{approval_id}/lines", headers=bearer("bob"))
    assert stranger.status_code == 404


# the form, pure


@pytest.mark.parametrize(
    "body", [b"", b"decision", b"decision=yes", b"decision=approve&decision=reject", b"\xff=1"]
)
async def test_a_form_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidForm):
        parse(body)


async def test_a_field_whose_number_is_none_is_no_answer() -> None:
    for number in ("9" * 5000, "\u0663", "-1", "", "1e3"):
        body = urlencode({"decision": "approve", f"value-{number}": "x"}).encode()
        assert parse(body).values == {}


@pytest.mark.parametrize(
    ("item", "text", "value"),
    [
        ({"kind": "input"}, '{"a": 1}', {"a": 1}),
        ({"kind": "input"}, "plain", "plain"),
        ({"kind": "input", "input_schema": {"type": "string"}}, "5", "5"),
        ({"kind": "input"}, "", None),
        ({"kind": "confirmation"}, "5", None),
    ],
)
async def test_a_field_s_value_is_json_or_text(
    item: dict[str, Any], text: str, value: object
) -> None:
    form = parse(urlencode({"decision": "approve", "value-0": text}).encode())
    assert decisions([{"item_id": "i", **item}], form)[0].value == value


async def test_the_records_of_links_are_json_that_names_nobody_else(penstock: Secured) -> None:
    _, approval_id = await paused(penstock)
    made = await penstock.link(approval_id, user="grace", role="finance")
    entry = await penstock.bus.bucket("tokens").get(f"link.{made['id']}")
    assert entry is not None
    kept = orjson.loads(entry.value)
    assert (kept["user"], kept["role"], kept["created_by"]) == ("grace", "finance", "root")
    assert kept["request_digest"] == "d"
    assert Deciders.model_validate(FINANCE[0]).roles == ["finance"]
