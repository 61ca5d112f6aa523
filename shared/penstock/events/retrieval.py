"""retrieval.*: searches of knowledge bases and their results."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from penstock.events.base import Data, Model
from penstock.events.note import Note


class Document(Model):
    """One document that was found."""

    id: str = Field(description="The document's id in its store.")
    score: float | None = Field(
        default=None, description="How well the document matches; a higher score is better."
    )
    content: str = Field(description="The text that was found.")
    title: str | None = Field(default=None, description="The document's title.")
    url: str | None = Field(default=None, description="The document's address.")


class Started(Data, title="Retrieval started"):
    """A search of a knowledge base begins."""

    TYPE: ClassVar[str] = "retrieval.started"
    NOTE: ClassVar[Note] = Note(
        when="When a search of a knowledge base begins, if the upstream reports it.",
        times="once per `retrieval_id`",
        sequence=3,
        example={"retrieval_id": "q1", "query": "old report"},
    )
    retrieval_id: str = Field(description="The search's id, unique in the run.")
    query: str = Field(description="The query of the search.")


class Result(Data, title="Documents retrieved"):
    """A search found documents."""

    TYPE: ClassVar[str] = "retrieval.result"
    NOTE: ClassVar[Note] = Note(
        when="When documents were found.",
        times="any number",
        sequence=4,
        example={
            "retrieval_id": "q1",
            "documents": [{"id": "d-2", "score": 0.92, "content": "Report of 2023."}],
        },
    )
    retrieval_id: str | None = Field(
        default=None, description="The search's id, where the search was announced."
    )
    documents: list[Document] = Field(
        description="The documents that were found, the best match first."
    )
