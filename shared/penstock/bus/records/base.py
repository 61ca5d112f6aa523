"""The base of all records."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """The base of all records. Unknown fields are kept: two versions can run side by side."""

    model_config = ConfigDict(extra="allow")

    def dump(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()
