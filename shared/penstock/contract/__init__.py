"""What is published of the contract: JSON Schema, AsyncAPI, TypeScript and a catalogue to read.

All of it is made from `penstock.events` by `make contract` and committed under deploy/contract/,
where tests hold it to the code. `unified` needs pydantic only, so a subscriber may import it.
"""

from __future__ import annotations

# Major and minor of the distribution. A released contract only grows: see `compatibility`.
VERSION = "0.1"
