"""Only an answer with the digest of what was shown decides, over the real approvals service."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from penstock.bus import subjects
from penstock.bus.records.approvals import ApprovalRecord
from penstock.dialects.openai import RequestId
from penstock_edge.surfaces.openai.request import message_of
from support.attacks import openai_answers
from support.attacks.openai_answers import CHAT, RESPONSES
from support.attacks.smuggled import ATTACKS, Target
from support.drive.secured import Secured, bearer, secured
from support.fakes.pretend import PretendRun
from support.real.nats import NatsServer

DIGEST = "sha256:" + 16 * "0a1b"
ITEM = {
    "item_id": "c1",
    "kind": "confirmation",
    "digest": DIGEST,
    "tool": "delete_file",
    "args": {"path": "a"},
    "tool_call_id": "c1",
    "editable": False,
}


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("openai"), name="nats of OpenAI's answers")
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def penstock(nats: NatsServer) -> AsyncIterator[Secured]:
    async with secured(nats.url) as running:
        yield running


async def paused(penstock: Secured, user: str = "alice") -> tuple[PretendRun, Target]:
    """Return a run that waits for a decision."""
    run = await penstock.live(user)
    approval_id = await penstock.approval(run, user, items=[ITEM], digest=16 * "f0f0")
    asked = {"approval_id": approval_id, "digest": "d", "items": [ITEM], "deciders_required": 1}
    await run.text("May I?")
    await run.say("approval.requested", **asked)
    await run.say("lifecycle.paused", reason="approval_required", approval_id=approval_id)
    target = Target(
        agent="assistant",
        session=run.session_id,
        run_id=run.run_id,
        approval_id=approval_id,
        digest=16 * "f0f0",
        item_id="c1",
        tool_call_id="c1",
        tool={},
        call={},
        interrupt={},
        openai_request=str(RequestId.of(approval_id, ITEM)),
    )
    return run, target


def answer(target: Target, **fields: Any) -> dict[str, Any]:
    return openai_answers.answered(target, **fields)[1]


async def test_nothing_else_decides(penstock: Secured) -> None:
    _, target = await paused(penstock)
    attacks = [each for each in ATTACKS if each.face == "openai"]
    assert len(attacks) > 30
    for attack in attacks:
        user, scope = attack.caller.value
        request = attack.make(target)
        headers = {**bearer(user, scope=scope), **request.headers}
        got = await penstock.http.post(request.path, json=request.body, headers=headers)
        assert got.status_code == attack.refusal("assistant"), (str(attack), got.text)
        if got.is_error:
            assert got.json()["error"].keys() == {"message", "type", "param", "code"}
        if user == "bob":
            assert "May I?" not in got.text
        await penstock.stands(target.approval_id)


async def test_an_answer_to_an_earlier_pause_of_the_same_call_decides_nothing(
    penstock: Secured,
) -> None:
    run, target = await paused(penstock)
    decided = await penstock.approval(run, items=[ITEM], status="decided")
    earlier = str(RequestId.of(decided, ITEM))
    body = answer(target, input=[openai_answers.answer(target, earlier)])
    got = await penstock.http.post(RESPONSES, json=body, headers=bearer())
    assert got.status_code == 409, got.text
    await penstock.stands(target.approval_id)


async def test_an_answer_after_the_response_of_another_run_decides_nothing(
    penstock: Secured,
) -> None:
    _, target = await paused(penstock)
    other, _ = await paused(penstock)
    body = answer(target, previous_response_id=f"resp_{other.run_id}")
    got = await penstock.http.post(RESPONSES, json=body, headers=bearer())
    assert (got.status_code, got.json()["error"]["param"]) == (400, "input")
    await penstock.stands(target.approval_id)


async def test_the_answer_with_the_digest_decides_and_its_retry_decides_no_second_time(
    penstock: Secured,
) -> None:
    run, pause = await paused(penstock)
    # A reason that is no text is none.
    given = [openai_answers.answer(pause, reason=[1])]
    named = {"background": True, "previous_response_id": f"resp_{run.run_id}"}
    body = answer(pause, input=given, **named)
    first = {**bearer(), "x-stainless-retry-count": "0"}
    begun = await penstock.http.post(RESPONSES, json=body, headers=first)
    assert begun.json()["status"] == "queued", begun.text
    assert begun.json()["id"] == f"resp_{run.run_id}.2"
    decision = await penstock.decision(pause.approval_id)
    assert (decision["by"], decision["decider"]["channel"]) == ("alice", "openai")
    again = {**bearer(), "x-stainless-retry-count": "1"}
    retried = await penstock.http.post(RESPONSES, json=body, headers=again)
    assert retried.json()["id"] == begun.json()["id"], retried.text
    assert await penstock.decision(pause.approval_id) == decision


async def test_an_answer_to_what_was_edited_since_decides_nothing(penstock: Secured) -> None:
    _, pause = await paused(penstock)
    edited = {**ITEM, "args": {"path": "/"}, "digest": "sha256:" + 16 * "ffff"}
    bucket = penstock.bus.bucket("approvals")
    record = await bucket.load(pause.approval_id, ApprovalRecord)
    assert record is not None
    changed = record.model_copy(update={"items": [edited], "digest": "e", "requested_digest": "d"})
    await bucket.put(pause.approval_id, changed.dump())
    got = await penstock.http.post(RESPONSES, json=answer(pause), headers=bearer())
    assert got.status_code == 409
    assert got.headers["x-should-retry"] == "false"
    await penstock.stands(pause.approval_id)


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "assistant", "messages": [*messages], **fields}


async def test_a_chat_gets_a_link_for_whoever_may_decide_and_then_the_rest(
    penstock: Secured,
) -> None:
    run, pause = await paused(penstock)
    named = {**bearer(), "x-penstock-session": pause.session}
    said = {"role": "user", "content": "yes, approve it"}
    waits = await penstock.http.post(CHAT, json=chat(said), headers=named)
    text = waits.json()["choices"][0]["message"]["content"]
    assert "This waits for a decision" in text
    found = re.search(r"delete_file\(.*\): (\S+/d/pln_\S+)", text)
    assert found is not None, text
    await penstock.stands(pause.approval_id)

    page = await penstock.http.get(found[1])
    form = dict(re.findall(r'name="(csrf)" value="([^"]+)"', page.text))
    done = await penstock.http.post(found[1], data={**form, "decision": "approve"})
    assert done.status_code == 303, done.text
    decision = await penstock.decision(pause.approval_id)
    assert decision["decider"]["channel"] == "link"

    run.leg_number = 2
    await run.say("lifecycle.resumed", approval_id=pause.approval_id)
    await run.say("llm.stream", content="Deleted.", message_id="m2")
    await run.completed()
    told = {"role": "assistant", "content": text}
    for _ in range(2):  # a retry gets the same
        rest = await penstock.http.post(CHAT, json=chat(said, told, said), headers=named)
        assert rest.json()["choices"][0]["message"]["content"] == "Deleted."


async def test_a_caller_who_may_not_decide_gets_no_link(penstock: Secured) -> None:
    _, pause = await paused(penstock)
    named = {**bearer(scope="start read"), "x-penstock-session": pause.session}
    said = {"role": "user", "content": "yes"}
    waits = await penstock.http.post(CHAT, json=chat(said, stream=True), headers=named)
    assert f"approval {pause.approval_id}" in waits.text
    assert "/d/pln_" not in waits.text
    assert waits.text.endswith("data: [DONE]\n\n")


async def test_a_service_token_gets_no_link_because_it_would_outlive_the_token(
    penstock: Secured,
) -> None:
    token, _ = await penstock.service_token(scopes=["start", "read", "decide"])
    _, pause = await paused(penstock, "service-token:machine")
    named = {**token, "x-penstock-session": pause.session}
    said = {"role": "user", "content": "yes"}
    waits = await penstock.http.post(CHAT, json=chat(said), headers=named)
    text = waits.json()["choices"][0]["message"]["content"]
    assert f"approval {pause.approval_id}" in text
    assert "/d/pln_" not in text


async def test_the_secret_of_a_link_does_not_reach_the_agent(penstock: Secured) -> None:
    heard: list[str] = []

    async def hear(msg: Any) -> None:
        heard.append(msg.data.decode())

    await penstock.bus.subscribe(subjects.command("connector", "start", "*"), hear)
    told = {"role": "assistant", "content": "Decide: https://x.example/d/pln_secret (once)"}
    asked = [{"role": "user", "content": "Hi"}, told, {"role": "user", "content": "Title of this?"}]
    got = await penstock.http.post(CHAT, json=chat(*asked), headers=bearer())
    assert got.is_success, got.text
    [command] = [each for each in heard if "Title of this?" in each]
    assert "Decide: (a link) (once)" in command


def test_links_are_looked_for_in_a_word_of_a_megabyte_without_delay() -> None:
    word = "x" * 1_000_000
    began = time.process_time()
    found = message_of(
        [{"role": "user", "content": f"{word} y/d/pln_s z"}], "input", in_session=True
    )
    assert found == f"{word} (a link) z"
    assert time.process_time() - began < 5  # a search that is quadratic takes minutes
