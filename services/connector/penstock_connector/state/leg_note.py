"""What another connector needs to know of a leg that is held: KV `claims`, `active.<pod>.<run>`.

The command stands behind the facts as it came from the stream, so that a large one stays a
reference to the object store.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Literal

import orjson


@dataclass(frozen=True, slots=True)
class Held:
    """A leg, the command that opened it, and the run's id at the server where it gave one."""

    leg: int
    sequence: int  # of the command in its stream: the leg's place in the session's queue
    kind: Literal["start", "continue"]
    command: bytes
    after: int = 0  # RAW's sequence of the run's last source frame before the `open`; 0 without one
    approval_id: str | None = None  # the decision that the leg sends
    upstream_run_id: str | None = None

    def dump(self) -> bytes:
        """Facts, newline, command."""
        facts = asdict(replace(self, command=b""))
        del facts["command"]
        return orjson.dumps(facts) + b"\n" + self.command

    @classmethod
    def parse(cls, value: bytes) -> Held | None:
        """None for a record of a version that kept nothing; facts of a later one are left out."""
        facts, _, command = value.partition(b"\n")
        if not command:
            return None
        known = {key: fact for key, fact in orjson.loads(facts).items() if key in _FACTS}
        return cls(**known, command=command)


_FACTS = frozenset(each.name for each in fields(Held)) - {"command"}
