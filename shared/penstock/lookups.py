"""Waits for a record that another service is about to write.

A client sees the event `approval.requested` as soon as the event is stored. So the client may ask
for the approval before the approvals service has written the approval's record.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

LOOKUP_S: Final = 2.0
# The pause before the second lookup is `FIRST_S`. Each further pause is twice as long, up to
# `LONGEST_S`.
FIRST_S: Final = 0.02
LONGEST_S: Final = 0.25
# How many waits of one owner look again and again. Without this limit, an owner who asks for many
# unknown ids would keep NATS busy.
MAX_REPEATING: Final = 20

T = TypeVar("T")
_repeating: Counter[str] = Counter()  # the waits of each owner in this process


async def look_until(owner: str, look: Callable[[], Awaitable[T]], fits: Callable[[T], bool]) -> T:
    """Call `look` until `fits` accepts its result, but for two seconds at most; return the last
    result, which `fits` may not have accepted.

    `owner` is the user for whom the lookup is made. If `MAX_REPEATING` lookups of this user are
    waiting already, this lookup is repeated only once, at the end of the two seconds. Raises what
    `look` raises.
    """
    found = await look()
    if fits(found):
        return found
    loop = asyncio.get_running_loop()
    until_s = loop.time() + LOOKUP_S
    pause_s = FIRST_S if _repeating[owner] < MAX_REPEATING else LOOKUP_S
    _repeating[owner] += 1
    try:
        while not fits(found) and (left_s := until_s - loop.time()) > 0:
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_S)
            found = await look()
        return found
    finally:
        _repeating[owner] -= 1
        if not _repeating[owner]:
            del _repeating[owner]
