"""Makes the item of a pause from a question of the upstream."""

from __future__ import annotations

from penstock.dialects.agno.decode.agents import Run
from penstock.dialects.agno.decode.calls import Call, tool_args, tool_name
from penstock.dialects.agno.decode.pauses import Need
from penstock.dialects.base import PauseItem, Subrun


def pause_item(item_id: str, need: Need, call: Call | None, run: Run) -> PauseItem:
    """Returns the item of a question. `call` is the call that waits for the answer, if any."""
    subrun = run.subrun
    if subrun is None and need.run_id not in (None, run.id):  # a member without an earlier frame
        subrun = Subrun(id=str(need.run_id), name=need.run_name or str(need.run_id))
    return PauseItem(
        item_id=item_id,
        kind=need.kind,
        tool_call_id=call.id if call else None,
        tool=tool_name(need.tool) if need.tool else None,
        args=tool_args(need.tool) if need.tool else None,
        description=need.description,
        input_schema=need.input_schema,
        options=need.options,
        # The arguments of a confirmed call are editable: if the continue request has other
        # arguments, Agno runs the call with the other arguments.
        editable=call is not None and need.kind == "confirmation",
        subrun=subrun,
    )
