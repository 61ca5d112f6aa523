"""Every generated document, by its path under deploy/contract/."""

from __future__ import annotations

from penstock.contract import asyncapi, catalogue, typescript
from penstock.contract.schemas import schemas, text


def documents() -> dict[str, str]:
    """Return the content by path; it is the same every time, so that a test can compare it."""
    return {
        "asyncapi.json": text(asyncapi.document()),
        "catalogue.md": catalogue.page(),
        "penstock.d.ts": typescript.declarations(),
        **{f"schemas/{name}.json": text(schema) for name, schema in schemas().items()},
    }
