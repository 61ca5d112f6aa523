"""Checks what a caller may do with runs."""

from __future__ import annotations

from penstock.bus import Bus
from penstock.bus.records import RunRecord
from penstock.web.auth import Identity, check_run, require
from penstock_edge.sources.locate import record_of
from penstock_edge.views.dialects import RAW_DIALECT


async def run_of(bus: Bus, who: Identity, run_id: str) -> RunRecord:
    """Return the record of a run, if the caller may see the run.

    Raises:
        Problem: 404 if there is no such run; 404 or 403 if `check_run` refuses the caller.
        BusError: KV cannot be read now.
    """
    record = await record_of(bus, run_id)
    check_run(who, record.user_id, record.run_id, record.session_id)
    return record


def require_dialect(who: Identity, dialect: str) -> None:
    """Require the scope `raw` if the dialect is `RAW_DIALECT`, the agent server's own bytes.

    Raises:
        Problem: 403 if the caller does not have the scope.
    """
    if dialect == RAW_DIALECT:
        require(who, "raw")
