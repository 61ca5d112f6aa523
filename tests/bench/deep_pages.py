"""Ask for 60 deep pages of /v1/events at a time, again and again, as one user.

`python deep_pages.py PORT TOKEN CURSOR`. When its input ends, it prints a line of JSON: the number
of answered pages by status, and the time of a page.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

import httpx

AT_ONCE = 60
TIMEOUT_S = 20.0


async def main(port: int, token: str, cursor: str) -> None:
    statuses: Counter[str] = Counter()
    took_s: list[float] = []
    headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
    limits = httpx.Limits(max_connections=AT_ONCE)
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits) as http:

        async def ask() -> None:
            after = cursor
            while True:
                begun = time.perf_counter()
                try:
                    answer = await http.get(
                        "/v1/events", params={"after": after, "limit": "5"}, timeout=TIMEOUT_S
                    )
                except httpx.TimeoutException:
                    statuses["timeout"] += 1
                    continue
                statuses[str(answer.status_code)] += 1
                took_s.append(time.perf_counter() - begun)
                if answer.status_code == 200:
                    nearer = answer.json()["next"]
                    after = cursor if nearer == after else nearer
                else:
                    await asyncio.sleep(float(answer.headers.get("retry-after", "1")))

        asking = [asyncio.create_task(ask()) for _ in range(AT_ONCE)]
        await asyncio.to_thread(sys.stdin.read)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    longest = max(took_s, default=0.0)
    print(json.dumps({"statuses": statuses, "longest_s": round(longest, 2)}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
