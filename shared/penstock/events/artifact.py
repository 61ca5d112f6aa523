"""artifact.*: files that a run makes."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from penstock.events.base import Data
from penstock.events.note import Note


class Updated(Data, title="Artifact updated"):
    """A file was made, or has a new version."""

    TYPE: ClassVar[str] = "artifact.updated"
    NOTE: ClassVar[Note] = Note(
        when="When a run made a file, or a new version of one.",
        times="any number",
        sequence=14,
        example={
            "name": "report.pdf",
            "version": 0,
            "media_type": "application/pdf",
            "size_bytes": 48211,
        },
    )
    name: str = Field(description="The file's name.")
    version: int | None = Field(
        default=None, description="The number of the version; the first is 0."
    )
    media_type: str | None = Field(default=None, description="The media type (MIME) of the file.")
    size_bytes: int | None = Field(default=None, description="The size of the file in bytes.")
    digest: str | None = Field(
        default=None, description="The SHA-256 of the content as hexadecimal digits."
    )
    uri: str | None = Field(default=None, description="The address of the file.")
