"""The engine of workflows: it decides what happens next in a run. Pure.

A run's journal is the list of its records. An input is what the service has learnt from the bus,
such as the end of a child. A child is a run that a step starts. An effect is what the service does
on the bus for the run. A frame is a source frame of the run in RAW.

The service reads a run's journal, folds it into a state (`folded`), and asks `decide` what an input
changes. It appends the decision's records to the journal in one step, then writes the frames and
carries out the effects. Each effect may be repeated. `open_effects` returns the effects of all
steps that have begun and are not done.
"""
