"""retrieval.*: what was looked up, and what was found."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from penstock.events.base import Data, Model


class Document(Model):
    """One document that was found."""

    id: str = Field(description="The document's id in its store.")
    score: float | None = Field(default=None, description="How well it fits; higher is better.")
    content: str = Field(description="The text that was found.")
    title: str | None = Field(default=None, description="Its title.")
    url: str | None = Field(default=None, description="Where it is.")


class Started(Data, title="Retrieval started"):
    """A search of a knowledge base begins."""

    TYPE: ClassVar[str] = "retrieval.started"
    retrieval_id: str = Field(description="The search, unique in the run.")
    query: str = Field(description="What is looked for.")


class Result(Data, title="Documents retrieved"):
    """What a search found."""

    TYPE: ClassVar[str] = "retrieval.result"
    retrieval_id: str | None = Field(default=None, description="The search, if it was announced.")
    documents: list[Document] = Field(description="What was found, best first.")


EVENTS: tuple[type[Data], ...] = (Started, Result)
