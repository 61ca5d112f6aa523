"""`python -m penstock_cli.openapi FILE`: write the document."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.contract.schemas import text
from penstock_cli.openapi.document import document

Path(sys.argv[1]).write_text(text(document()), encoding="utf-8")
