"""The published contract: JSON Schema, AsyncAPI, OpenAPI, TypeScript and a catalogue for people.

`make contract` makes all of it from the models and the operations, and writes it to
deploy/contract/. Tests compare the files with the code. `unified` needs pydantic only, so that a
subscriber can import it.
"""

from __future__ import annotations

# The major and minor version of the distribution. A released contract only grows, see
# `compatibility`.
VERSION = "0.9"
