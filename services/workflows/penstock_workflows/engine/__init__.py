"""The engine of workflows: it decides what happens next in a run. Pure.

A run's journal is the list of its records. An input is what the service has learnt from the bus,
such as the end of a child. A child is a run that a step starts. An effect is what the service does
on the bus for the run. A frame is a source frame of the run in RAW.

The service reads a run's journal, folds it into a state (`folded`), and asks `decide` what an input
changes. It appends the decision's records to the journal in one step, then writes the frames and
carries out the effects. Each effect may be repeated. `open_effects` returns the effects of all
steps that have begun and are not done.
"""

from penstock_workflows.engine.decide import Decision, decide
from penstock_workflows.engine.draft import SliceUsed
from penstock_workflows.engine.effecting import open_effects
from penstock_workflows.engine.effects import (
    Call,
    CancelChild,
    CancelTimer,
    Effect,
    Frame,
    Listen,
    StartChild,
    StartTimer,
    Unlisten,
)
from penstock_workflows.engine.inputs import (
    ApprovalInput,
    CalledInput,
    CancelInput,
    ChildInput,
    EventInput,
    FailInput,
    Input,
    ProceedInput,
    StartInput,
    StepStartedSeen,
    TimerInput,
)
from penstock_workflows.engine.projection import projection
from penstock_workflows.engine.records import Record, UnknownRecord, decode, encode
from penstock_workflows.engine.state import State, fold, folded
from penstock_workflows.engine.values import Stored, ValuesNeeded

__all__ = [
    "ApprovalInput",
    "Call",
    "CalledInput",
    "CancelChild",
    "CancelInput",
    "CancelTimer",
    "ChildInput",
    "Decision",
    "Effect",
    "EventInput",
    "FailInput",
    "Frame",
    "Input",
    "Listen",
    "ProceedInput",
    "Record",
    "SliceUsed",
    "StartChild",
    "StartInput",
    "StartTimer",
    "State",
    "StepStartedSeen",
    "Stored",
    "TimerInput",
    "UnknownRecord",
    "Unlisten",
    "ValuesNeeded",
    "decide",
    "decode",
    "encode",
    "fold",
    "folded",
    "open_effects",
    "projection",
]
