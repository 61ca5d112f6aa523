"""Write deploy/contract/conformance.md again; `make contract` runs this module."""

from __future__ import annotations

from conformance.tables import PAGE, page

PAGE.write_text(page(), "utf-8")
