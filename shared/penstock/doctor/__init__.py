"""Checks a deployment: facts are gathered, and a table of checks judges them.

`penstock doctor` makes all checks, and the edge those for which it needs nothing but NATS
(`GET /v1/system`).
"""
