"""What waits in a session, on the screen of a run."""

from __future__ import annotations

import uuid

import httpx
import pytest

from support.drive.waiting import eventually
from support.real.consoles import has_status, is_accessible, is_clean
from support.real.devtools import page_at

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

ITEMS = "[...document.querySelectorAll('.queue li > :first-child')].map((each) => each.innerText)"


async def test_a_waiting_start_is_moved_up_and_withdrawn(
    demo: str, http: httpx.AsyncClient
) -> None:
    session = uuid.uuid4().hex

    async def start(message: str) -> str:
        body = {"agent": "tester", "session_id": session, "message": message}
        answer = await http.post("/v1/runs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    async def queued() -> list[str]:
        answer = await http.get(f"/v1/sessions/{session}/queue")
        return [run["run_id"] for run in answer.json()["queue"]]

    first = await start("slow")
    a, b = await start("text a"), await start("text b")

    async def both() -> bool:
        return await queued() == [a, b]

    await eventually(both, what="both starts to wait")
    async with page_at(f"{demo}/console/runs/{b}") as page:
        behind = "document.querySelector('.turn')?.innerText"
        await page.until(f"{behind} === 'This run waits for its turn, behind slow and 1 more.'")
        await page.go(f"{demo}/console/runs/{first}")
        await page.until(f"{ITEMS}.join() === 'text a,text b'")
        assert await page.value("document.querySelectorAll('.queue .up').length") == 1
        await page.click(".queue .up")
        await page.until(f"{ITEMS}.join() === 'text b,text a'")
        assert await queued() == [b, a]
        await page.click(".queue .withdraw")
        await page.until(f"{ITEMS}.join() === 'text a'")
        assert await queued() == [a]
        await http.post(f"/v1/runs/{first}/cancel")
        await page.until("!document.querySelector('.queue')")
        is_clean(page, demo)
    withdrawn = (await http.get(f"/v1/runs/{b}")).json()
    assert withdrawn["status"] == "cancelled"


@pytest.mark.console
async def test_a_run_of_a_workflow_names_the_run_with_its_key_that_began_before(
    demo: str, http: httpx.AsyncClient
) -> None:
    step = {"approve": {"title": '"Go on?"'}}
    flow = {"dsl": "penstock/1", "name": "in_turn", "version": "1", "steps": {"ask": step}}
    body = {**flow, "exclusive": {"key": '"one"'}}
    assert (await http.put("/v1/workflows/in_turn/versions/1", json=body)).is_success

    async def start(message: str) -> str:
        answer = await http.post("/v1/workflows/in_turn/runs", json={"message": message})
        return str(answer.json()["run_id"])

    first = await start("the first")
    await has_status(http, first, "paused")
    later = await start("the later one")
    async with page_at(f"{demo}/console/runs/{later}") as page:
        await page.until("document.querySelector('.queue')?.innerText.includes('the first')")
        assert "runs with the key one " in await page.text(".turn")
        assert "waits for its turn" in await page.text(".working")
        await is_accessible(page, "turn")
        await http.post(f"/v1/runs/{first}/cancel")
        await page.until(
            "!!document.querySelector('.decision') && !document.querySelector('.turn')"
        )
        is_clean(page, demo)
    await http.post(f"/v1/runs/{later}/cancel")
