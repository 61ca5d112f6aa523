"""`python -m support.chaos.unfenced penstock_normalizer`: a service whose writes are not fenced.

A round with this service shows that the checks find what the fence prevents. No setting of the
product does this.
"""

from __future__ import annotations

import runpy
import sys

from penstock.bus import Message
from penstock.bus.write import fence


def _unfenced(message: Message, pattern: str, last: int) -> Message:
    """Return the message without an expected sequence, so that the server always accepts it."""
    return message


def main() -> None:
    """Leave the expected sequence out of every append, then run the service."""
    assert callable(fence._fenced), "the bus builds its fence elsewhere now"
    fence._fenced = _unfenced
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
