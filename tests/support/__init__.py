"""Shared helpers of the tests.

`fakes` has servers that misbehave. `real` starts real servers. `drive` has clients and checks.
`recorded` replays recorded streams. `chaos` plays rounds of faults.
"""
