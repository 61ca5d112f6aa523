"""artifact.*: files that a run makes."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from penstock.events.base import Data


class Updated(Data, title="Artifact updated"):
    """A file was made, or has a new version."""

    TYPE: ClassVar[str] = "artifact.updated"
    name: str = Field(description="The file's name.")
    version: int | None = Field(default=None, description="Its version; the first is 0.")
    media_type: str | None = Field(default=None, description="Its media type (MIME).")
    size_bytes: int | None = Field(default=None, description="Its size in bytes.")
    digest: str | None = Field(default=None, description="SHA-256 hex of its content.")
    uri: str | None = Field(default=None, description="Where to fetch it.")


EVENTS: tuple[type[Data], ...] = (Updated,)
