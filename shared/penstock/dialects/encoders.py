"""Lists the client dialects, each with its encoder. A new dialect needs one row in this table.

AG-UI is not in this table, because its encoder needs the client's thread and run ids. The events of
a run do not contain these ids. `agui.encode.PROFILES` lists the field profiles of AG-UI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.dialects import a2a, canonical, executions, unified, vercel
from penstock.dialects.adk import encode as adk
from penstock.dialects.agno import encode as agno
from penstock.dialects.base import ClientDialect

CLIENT_DIALECTS: Final[Mapping[str, ClientDialect]] = {
    "canonical": canonical.DIALECT,
    "executions": executions.DIALECT,
    "unified": unified.DIALECT,
    "adk": adk.DIALECT,
    "agno": agno.DIALECT,
    "vercel": vercel.DIALECT,
    "a2a": a2a.DIALECT,
}
