"""What waits in a session, on the screen of a run."""

from __future__ import annotations

import uuid

import httpx
import pytest

from support.drive.waiting import eventually
from support.real.consoles import is_clean
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
    async with page_at(f"{demo}/console/runs/{first}") as page:
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
