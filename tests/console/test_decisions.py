"""What helps a person to decide in the console's inbox: comparison, edits, danger, equal calls."""

from __future__ import annotations

import json
import secrets
from typing import Any

import httpx
import pytest

from support.fakes.issuer import token
from support.real.consoles import (
    HOSTILE,
    SHOWN,
    decided,
    has_status,
    is_accessible,
    is_clean,
    sign_in,
    started,
)
from support.real.devtools import Page, page_at

# The demo starts two agent servers, which takes long on a busy machine.
pytestmark = [pytest.mark.real, pytest.mark.timeout(180), pytest.mark.console]


DRAWN = "new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn, 50)))"


async def waiting(http: httpx.AsyncClient, message: str, **body: Any) -> tuple[str, str]:
    """Start a run that asks; return its id, and the id of its approval."""
    run_id = await started(http, f"confirm {message}", **body)
    return run_id, str((await has_status(http, run_id, "paused"))["approval_id"])


async def chosen(page: Page, demo: str, approval_id: str) -> None:
    await page.go(f"{demo}/console/inbox/{approval_id}")
    await page.until(f"!!document.querySelector('.chosen [data-approval=\"{approval_id}\"]')")


async def test_arguments_are_compared_with_the_last_approved_call_of_the_tool(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id = await started(http, f"confirm {HOSTILE}")
    await decided(http, run_id)
    await has_status(http, run_id, "completed")
    _, approval_id = await waiting(http, "something else")
    async with page_at(f"{demo}/console") as page:
        await page.resize(1280)
        await chosen(page, demo, approval_id)
        await page.until("!!document.querySelector('.chosen .compared')")
        assert "the last approved call, by anonymous" in await page.text(".chosen .compared")
        assert await page.text(".chosen .tree .differs") == '"something else"'
        assert "before: " in await page.text(".chosen .tree .was")
        assert "\u202e" not in await page.value("document.documentElement.outerHTML")
        await is_accessible(page, "inbox-compared")
        is_clean(page, demo)


async def test_changed_arguments_are_shown_beside_those_that_were_asked_and_are_what_runs(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id, approval_id = await waiting(http, "first words")
    [item] = (await http.get(f"/v1/approvals/{approval_id}")).json()["items"]
    [name] = item["args"]
    async with page_at(f"{demo}/console") as page:
        await page.resize(1280)
        await chosen(page, demo, approval_id)
        await page.click(".chosen .item button")
        await page.until("!!document.querySelector('.edit textarea')")
        await page.type(".edit textarea", "{")
        await page.until("document.querySelector('.edit .bad')?.innerText.includes('no JSON')")
        assert await page.value("document.querySelector('.chosen button.approve').disabled")
        await page.type(".edit textarea", json.dumps({name: "other words"}))
        await page.until("!!document.querySelector('.chosen .tree .differs')")
        assert await page.text(".chosen .tree .differs") == '"other words"'
        assert '"first words"' in await page.text(".chosen .tree .was")
        await is_accessible(page, "inbox-edited")
        await page.click(".chosen button.approve")
        await page.until("!!document.querySelector('.chosen .outcome')")
        record = (await http.get(f"/v1/approvals/{approval_id}")).json()
        assert record["decision"]["items"][0]["args"] == {name: "other words"}
        await has_status(http, run_id, "completed")
        is_clean(page, demo)


async def test_a_run_shows_the_arguments_that_were_approved_and_not_those_that_were_asked(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id, approval_id = await waiting(http, "first words")
    approval = (await http.get(f"/v1/approvals/{approval_id}")).json()
    [item] = approval["items"]
    [name] = item["args"]
    changed = {"item_id": item["item_id"], "decision": "approve", "args": {name: "other words"}}
    body = {"digest": approval["digest"], "note": "as agreed", "items": [changed]}

    async def is_as_approved() -> None:
        await page.until("!!document.querySelector('.decision .outcome')")
        assert await page.text(".decision .outcome") == "approved by anonymous: as agreed"
        assert await page.text(".decision .tree .differs") == '"other words"'
        assert '"first words"' in await page.text(".decision .tree .was")
        assert "other words" in await page.text(".item-tool .preview")

    async with page_at(f"{demo}/console/runs/{run_id}") as page:
        await page.until("!!document.querySelector('.decision button.approve:enabled')")
        # Another person decides, while this page is open.
        await http.post(f"/v1/approvals/{approval_id}/decision", json=body)
        await is_as_approved()
        await has_status(http, run_id, "completed")
        await page.go(f"{demo}/console/runs/{run_id}?tab=transcript")
        await is_as_approved()
        is_clean(page, demo)


async def test_lists_in_a_narrow_window_say_when_a_run_began_and_when_it_was_decided(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id, _ = await waiting(http, "in a narrow window")
    await decided(http, run_id)
    place = f"/console/runs/{run_id}"
    async with page_at(f"{demo}/console/inbox/earlier") as page:
        await page.resize(360)
        for path in ("inbox/earlier", "runs"):
            await page.go(f"{demo}/console/{path}")
            row = f"document.querySelector('tr:has(a[href=\"{place}\"])')"
            await page.until(f"!!{row}")
            assert await page.value(
                f"{row}.innerText.includes(' AM') || {row}.innerText.includes(' PM')"
            )
            assert await page.value("document.documentElement.scrollWidth") == 360


async def test_equal_calls_are_decided_together_and_different_ones_are_not(
    demo: str, http: httpx.AsyncClient
) -> None:
    words = f"once {secrets.token_hex(4)}"
    equal = [await waiting(http, words) for _ in range(2)]
    equal.append(await waiting(http, words, user_id="bob"))
    other = await waiting(http, f"{words} more")
    async with page_at(f"{demo}/console") as page:
        await page.resize(1280)
        await chosen(page, demo, equal[0][1])
        await page.until("document.querySelector('.alike')?.innerText.includes('the 2 other')")
        assert "also for bob" in await page.text(".alike")
        # A tool of another agent is another tool, although it has the same name.
        asked = (await http.get(f"/v1/approvals/{equal[0][1]}")).json()
        for changes, is_alike in (({}, True), ({"agent": "other"}, False)):
            pair = f"{json.dumps(asked)}, {json.dumps(asked | changes)}"
            code = "import('/assets/console/decision.js').then((found) => found.areAlike({}))"
            assert await page.value(code.format(pair)) is is_alike
        await page.click(".alike input")
        await page.click(".chosen button.approve")
        await page.until(
            "document.querySelector('.chosen .outcome')?.innerText.includes('2 of 2 others alike')"
        )
        for run_id, approval_id in equal:
            record = (await http.get(f"/v1/approvals/{approval_id}")).json()
            assert record["decision"]["outcome"] == "approved"
            await has_status(http, run_id, "completed")
        pending = (await http.get(f"/v1/approvals/{other[1]}")).json()
        assert pending["status"] == "pending"
        is_clean(page, demo)


async def test_a_long_argument_is_approved_only_after_it_was_opened(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id, approval_id = await waiting(http, "a long argument " * 60)
    async with page_at(f"{demo}/console") as page:
        await page.resize(1280)
        await chosen(page, demo, approval_id)
        await page.until("!!document.querySelector('.chosen .unseen')")
        await is_accessible(page, "inbox-unseen")
        approves = "document.querySelector('.chosen button.approve')"
        assert await page.value(f"{approves}.disabled")
        assert not await page.value("document.querySelector('.chosen button.reject').disabled")
        await page.press("a")
        await page.until("document.activeElement.matches('.unseen button')")
        await page.press("Enter")
        await page.until(f"!{approves}.disabled && !document.querySelector('.unseen')")
        assert await page.value("document.querySelector('.chosen details.long').open")
        # A further Enter would decide nothing: the focus is not on a button.
        await page.until("document.activeElement.matches('.foot')")
        await page.press("a")
        await page.until(f"document.activeElement === {approves}")
        await page.press("Enter")
        await page.until("!!document.querySelector('.chosen .outcome')")
        await has_status(http, run_id, "completed")
        is_clean(page, demo)


async def test_many_arguments_are_approved_only_after_all_of_them_were_in_view(
    demo: str, http: httpx.AsyncClient
) -> None:
    shown = {f"f{number:03}": number for number in range(120)}
    step = {"approve": {"title": '"All of these?"', "show": json.dumps(shown)}}
    flow = {"dsl": "penstock/1", "name": "wide", "version": "1", "steps": {"ask": step}}
    stored = await http.put("/v1/workflows/wide/versions/1", json=flow)
    assert stored.is_success, stored.text
    run_id = (await http.post("/v1/workflows/wide/runs", json={"input": {}})).json()["run_id"]
    approval_id = (await has_status(http, run_id, "paused"))["approval_id"]
    async with page_at(f"{demo}/console") as page:
        await page.resize(1280)
        await chosen(page, demo, approval_id)
        unseen = "document.querySelector('.chosen .unseen button')"
        await page.until(f"!!{unseen}")
        # Its end alone, after a jump, is not all of it.
        await page.value("scrollTo(0, document.documentElement.scrollHeight)")
        approves = "document.querySelector('.chosen button.approve')"
        await page.value(DRAWN)
        assert await page.value(f"{approves}.disabled")
        presses = 0
        while await page.value(f"{approves}.disabled"):
            presses += bool(await page.value(f"!!{unseen} && ({unseen}.click(), true)"))
            await page.value(DRAWN)
            assert presses < 20
        assert presses > 1
        await page.click(".chosen button.approve")
        await page.until("!!document.querySelector('.chosen .outcome')")
        await has_status(http, run_id, "completed")
        is_clean(page, demo)


async def test_a_dangerous_call_is_approved_only_after_its_name_was_typed(asking: str) -> None:
    admin = {"authorization": f"Bearer {token(sub='root', scope='administer read')}"}
    dora = token(sub="dora-danger", scope="start read raw decide")
    rule = {
        "id": "dangerous",
        "match": {"user": "dora-danger"},
        "outcome": "ask",
        "danger": True,
        "deadline": "2h",
        "note": HOSTILE,
    }
    async with httpx.AsyncClient(base_url=asking, timeout=30) as root:
        root.headers.update(admin)
        policy = {"version": 1, "default": {"edit": ["*"]}, "rules": [rule]}
        assert (await root.put("/v1/policy", json=policy)).is_success
    async with (
        httpx.AsyncClient(base_url=asking, timeout=30) as http,
        page_at(f"{asking}/console") as page,
    ):
        http.headers.update({"authorization": f"Bearer {dora}"})
        run_id, approval_id = await waiting(http, "the danger")
        await page.resize(1280)
        await sign_in(page, dora)
        # While the policy's word on it cannot be read, nobody can approve.
        await page.value(
            "{ const ask = fetch; window.fetch = (path, ...more) => "
            "String(path).includes('/v1/approvals/') ? Promise.reject(new TypeError('cut')) "
            ": ask(path, ...more); }"
        )
        moved = "dispatchEvent(new CustomEvent('penstock-moved', { detail: {} }))"
        await page.value(f"history.pushState(null, '', '/console/runs/{run_id}'); {moved}")
        await page.until("document.querySelector('.decision .error')?.innerText.includes('read')")
        assert await page.value("document.querySelector('button.approve').disabled")
        for place in (f"inbox/{approval_id}", f"runs/{run_id}"):
            await page.go(f"{asking}/console/{place}")
            await page.until("!!document.querySelector('.danger input')")
            assert await page.value("document.querySelector('button.approve').disabled")
            assert SHOWN in await page.text(".decision .item")
        terms = await page.text(".terms")
        assert "May decide: whoever asks." in terms
        assert "If nobody decides in time, it is rejected." in terms
        await chosen(page, asking, approval_id)
        await is_accessible(page, "inbox-danger")
        tool = await page.text(".chosen .item .tool")
        await page.press("a")  # leads to the field
        await page.until("document.activeElement.matches('.danger input')")
        await page.type(".danger input", f"{tool}s")
        assert await page.value("document.querySelector('button.approve').disabled")
        await page.type(".danger input", tool)
        await page.click(".chosen button.approve")
        await page.until("!!document.querySelector('.chosen .outcome')")
        await has_status(http, run_id, "completed")
        is_clean(page, asking)


async def test_a_vote_is_taken_back_where_it_is_shown_and_that_of_another_is_not(
    asking: str,
) -> None:
    admin = {"authorization": f"Bearer {token(sub='root', scope='administer read')}"}
    tom, grace = [token(sub=name, scope="start read raw decide") for name in ("tom-two", "grace")]
    deciders = {"users": ["requester", "grace"]}
    rule = {"id": "two", "match": {"user": "tom-two"}, "outcome": "ask", "need": 2}
    policy = {"version": 2, "rules": [{**rule, "deciders": deciders}]}
    async with (
        httpx.AsyncClient(base_url=asking, timeout=30) as http,
        page_at(f"{asking}/console") as page,
    ):
        assert (await http.put("/v1/policy", json=policy, headers=admin)).is_success
        http.headers.update({"authorization": f"Bearer {tom}"})
        run_id, approval_id = await waiting(http, "for two")
        link = f"/v1/approvals/{approval_id}/links"
        assert (await http.post(link, json={"user": "grace"}, headers=admin)).is_success
        await page.resize(1280)
        await sign_in(page, tom)
        await chosen(page, asking, approval_id)
        # The policy never lets mallory decide. Tom may decide although he has handed it over.
        await page.click(".chosen [aria-expanded=false]")
        shown = "document.querySelector('.chosen').innerText"
        for to, said, focus in (
            ("mallory", "to: ", ".hand-over input"),
            ("grace", "handover of tom-two to grace", ".foot"),
        ):
            await page.type(".hand-over input", to)
            await page.click(".hand-over button")
            await page.until(f"{shown}.includes('{said}')")
            await page.until(f"document.activeElement.matches('{focus}')")
        assert "handover of tom-two" in await page.text(".chosen [role=log]")  # a reader hears it
        page.logged[:] = [each for each in page.logged if "422" not in each]  # mallory's
        [remark] = (await http.get(f"/v1/approvals/{approval_id}")).json()["remarks"]
        assert (remark["kind"], remark["to"]) == ("handover", "grace")
        await page.click(".chosen button.approve")
        buttons = "[...document.querySelectorAll('.chosen button')]"
        takes_back = f"{buttons}.filter((each) => each.innerText === 'Take back')"
        await page.until(f"{takes_back}.length === 1")
        await page.value(f"{takes_back}[0].click()")
        await page.until("!!document.querySelector('.chosen button.approve:enabled')")
        path = f"/v1/approvals/{approval_id}"
        [vote] = (await http.get(path)).json()["votes"]
        assert (vote["by"], vote["void"], "taken_back" in vote) == ("tom-two", True, True)
        yes = {"approved": True, "digest": (await http.get(path)).json()["digest"]}
        of_grace = {"authorization": f"Bearer {grace}"}
        assert (await http.post(f"{path}/decision", json=yes, headers=of_grace)).is_success
        await page.until("document.querySelector('.chosen').innerText.includes('grace has voted')")
        assert await page.value(f"{takes_back}.length") == 0
        await page.go(f"{asking}/console/runs/{run_id}?tab=links")
        await page.until("!!document.querySelector('.asked')")
        await page.value("document.querySelector('.asked summary').click()")
        await page.until("!!document.querySelector('.audit')")
        told = " ".join((await page.text(".audit")).split())
        assert "linked by root to grace through the API" in told
        assert "remarked by tom-two to grace through the console" in told
        is_clean(page, asking)


async def test_a_question_is_asked_and_answered_without_a_decision(
    demo: str, http: httpx.AsyncClient
) -> None:
    _, approval_id = await waiting(http, "a question")
    async with page_at(f"{demo}/console") as page:
        await page.resize(1280)
        await chosen(page, demo, approval_id)
        for button, text in (
            ("Ask", "Which <b>one</b>?"),
            ("Answer the question", "This one."),
        ):
            await page.type(".chosen .foot input[maxlength]", text)
            code = "[...document.querySelectorAll('.chosen .foot button')]"
            named = f"{code}.find((each) => each.innerText === '{button}' && !each.disabled)"
            await page.until(f"!!{named}")
            await page.value(f"{named}.click()")
            await page.until(f"document.querySelector('.chosen').innerText.includes('{text}')")
        shown = await page.text(".chosen .decision")
        assert "question of anonymous: Which <b>one</b>?" in " ".join(shown.split())
        assert (await http.get(f"/v1/approvals/{approval_id}")).json()["status"] == "pending"
        is_clean(page, demo)


async def test_the_form_of_a_workflow_is_filled_in_or_rejected(
    demo: str, http: httpx.AsyncClient
) -> None:
    fields = {"amount": {"type": "number"}, "reason": {"type": "string"}}
    optional = {"type": "object", "properties": fields}
    forms = {"first": optional, "second": {**optional, "required": ["amount"]}}
    steps = {
        name: {"approve": {"title": f'"The {name}?"', "form": form}, "output": "result.data"}
        for name, form in forms.items()
    }
    steps["second"]["needs"] = ["first"]
    flow = {"dsl": "penstock/1", "name": "forms", "version": "1", "steps": steps}
    body = {**flow, "output": '{"first": first.output, "second": second.output}'}
    assert (await http.put("/v1/workflows/forms/versions/1", json=body)).is_success
    async with page_at(f"{demo}/console") as page:
        await page.resize(1280)
        # The page follows its end, so what is clicked with the mouse may move away.
        button = "document.querySelector('.decision:not(.is-settled) button.{}:enabled')"
        approves, rejects = (f"{button.format(each)}?.innerText" for each in ("approve", "reject"))
        ends = (("reject", "failed", "rejected"), ("approve", "completed", None))
        for press, status, code in ends:
            answer = await http.post("/v1/workflows/forms/runs", json={"input": {}})
            run_id = answer.json()["run_id"]
            await page.go(f"{demo}/console/runs/{run_id}")
            # Nothing need be filled in.
            await page.until(f"{approves} === 'Approve' && {rejects} === 'Reject'")
            await page.value(f"{button.format('approve')}.click()")
            await page.until("document.querySelectorAll('.decision').length === 2")
            await page.until(f"{rejects} === 'Reject'")
            assert await page.value(approves) is None
            if press == "approve":
                await page.type(".decision:not(.is-settled) .answer input[type=number]", "5")
            await page.until(f"{button.format(press)} && !{button.format(press)}.click()")
            run = await has_status(http, run_id, status)
            assert run.get("code") == code
            await page.until("!!document.querySelector('.item-end')")
        story = await page.text(".transcript")
        assert "approved by anonymous" in story
        end = (await http.get(f"/v1/runs/{run_id}/state")).json()
        assert end["steps"][1]["output"] == {"amount": 5}
        is_clean(page, demo)


async def test_a_late_answer_leads_nobody_back_to_the_inbox(
    demo: str, http: httpx.AsyncClient
) -> None:
    await waiting(http, "the first that waits")
    async with page_at(f"{demo}/console/runs") as page:
        await page.resize(1280)
        await page.value(
            "{ const ask = fetch; window.fetch = async (path, ...more) => {"
            " if (!String(path).includes('status=pending')) return ask(path, ...more);"
            " await new Promise((goOn) => (window.answer = goOn));"
            " const answer = await ask(path, ...more), text = await answer.text();"
            " return Object.assign(answer, { text: async () => {"
            " setTimeout(() => (window.isRead = true)); return text; } }); }; null }"
        )
        await page.click("nav a[href='/console/inbox']")
        await page.until("!!window.answer")
        await page.click("a[href='/console/inbox/earlier']")
        await page.until("document.querySelector('h1').innerText === 'Earlier decisions'")
        await page.value("answer()")
        await page.until("window.isRead")
        assert await page.value("location.pathname") == "/console/inbox/earlier"
        is_clean(page, demo)


async def test_a_decision_of_another_person_is_announced(
    demo: str, http: httpx.AsyncClient
) -> None:
    run_id, approval_id = await waiting(http, "for the other")
    async with page_at(f"{demo}/console") as page:
        await chosen(page, demo, approval_id)
        await page.until("document.querySelector('.live').textContent === 'live'")
        await decided(http, run_id, approved=False)
        await page.until("document.querySelector('.chosen .outcome')?.role === 'alert'")
        assert await page.text(".chosen .outcome") == "rejected by anonymous"
        is_clean(page, demo)
