"""Makes the item of a pause from a question of the upstream."""

from __future__ import annotations

from typing import Final

from penstock.dialects.agno.decode.agents import Run
from penstock.dialects.agno.decode.calls import Call, tool_args, tool_name
from penstock.dialects.agno.decode.pauses import Question
from penstock.dialects.base import PauseItem, Subrun

_OF_TEAMS: Final = "requirements"  # the section of a pause that has a team's questions


def pause_item(item_id: str, question: Question, call: Call | None, run: Run) -> PauseItem:
    """Return the item for a question.

    `call` is the call that waits for the answer; None if no call waits.
    """
    subrun = run.subrun
    # the run is a member's, and no earlier frame has named it
    if subrun is None and question.run_id not in (None, run.id):
        subrun = Subrun(id=str(question.run_id), name=question.run_name or str(question.run_id))
    return PauseItem(
        item_id=item_id,
        kind=question.kind,
        tool_call_id=call.id if call else None,
        tool=tool_name(question.tool) if question.tool else None,
        args=tool_args(question.tool) if question.tool else None,
        description=question.description,
        input_schema=question.input_schema,
        options=question.options,
        # A person may edit the arguments of a confirmed call of an agent or a workflow, because
        # Agno runs the call with the arguments in the continue request. A team ignores these
        # arguments, and runs the call with the stored arguments. So the person would approve
        # arguments with which no call runs.
        editable=call is not None
        and question.kind == "confirmation"
        and question.path[0] != _OF_TEAMS,
        subrun=subrun,
    )
