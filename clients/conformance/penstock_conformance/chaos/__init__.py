"""Kills an agent server at moments that a seed chooses, and reports what became of its runs.

- `plan` draws the moments, and `judge` counts what was seen. Both are pure.
- `protocols` says what a client of each protocol may ask for, also pure.
- `counter` counts the side effects of the scripted agents (`agents`).
- `server` starts, kills and restarts the server; `drive` is the clients; `rounds` plays it all.
"""
