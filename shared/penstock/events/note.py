"""What the published documents say of an event beyond its schema.

All examples belong to one imagined run, so that they can be read together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

RUN_ID: Final = "0198c5a0-7b1e-7c3a-9d52-4f6e8a1b2c3d"
DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
APPROVAL_ID: Final = "0198c5a0-8f00-7d11-a1b2-c3d4e5f60718"
DELIVERY_ID: Final = "0198c5a1-0001-7aaa-8bbb-0123456789ab"
WORKFLOW_RUN_ID: Final = "wf-7"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """When an event is published, and an example of it.

    `when` is a sentence, `times` says how often the event may be published. `sequence` and
    `example` are the sequence and the data of the example. `from_agent` is False for an event that
    Penstock publishes by itself: it has no source.
    """

    when: str
    times: str
    sequence: int
    example: Mapping[str, Any]
    from_agent: bool = True
