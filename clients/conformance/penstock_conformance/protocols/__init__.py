"""The protocols: the dialect and the statements of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock_conformance.dialect import Dialect
from penstock_conformance.protocols import a2a, adk, agno, agui, executions, openai, unified, vercel
from penstock_conformance.statements import Statement


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol. `path` is where most servers have it; `{agent}` is what `--agent` says."""

    dialect: type[Dialect]
    statements: tuple[Statement, ...]
    path: str


PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "agui": Protocol(agui.Agui, agui.STATEMENTS, "/"),
    "vercel": Protocol(vercel.Vercel, vercel.STATEMENTS, "/api/chat"),
    "openai": Protocol(openai.OpenAi, openai.STATEMENTS, "/v1"),
    "executions": Protocol(executions.Executions, executions.STATEMENTS, ""),
    "unified": Protocol(unified.Unified, unified.STATEMENTS, ""),
    "adk": Protocol(adk.Adk, adk.STATEMENTS, ""),
    "agno": Protocol(agno.Agno, agno.STATEMENTS, "/agents/{agent}"),
    "a2a": Protocol(a2a.A2a, a2a.STATEMENTS, "/a2a/{agent}"),
}
