"""Writes deploy/contract/conformance.md anew: `make contract` runs it."""

from __future__ import annotations

from conformance.tables import PAGE, page

PAGE.write_text(page(), "utf-8")
