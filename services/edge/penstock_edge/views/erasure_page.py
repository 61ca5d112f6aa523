"""Makes the page to print of an erasure's report. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

_STYLE: Final = (
    "body{font:12pt/1.4 sans-serif;margin:2em auto;max-width:50em}"
    "table{border-collapse:collapse;width:100%}"
    "th,td{border-bottom:1px solid #999;padding:.3em .6em .3em 0;text-align:left;"
    "vertical-align:top;overflow-wrap:anywhere}thead{display:table-header-group}"
    "tr{break-inside:avoid}"
)
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS: Final[Mapping[str, str]] = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
}


def page(
    title: str, facts: Mapping[str, Any], caption: str, rows: Sequence[Mapping[str, Any]]
) -> str:
    """Return a page with facts, and with a table of rows that all have the keys of the first."""
    told = "".join(
        f"<tr><th>{escape(name)}</th><td>{_text(value)}</td></tr>"
        for name, value in facts.items()
        if value
    )
    columns = [*rows[0]] if rows else []
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = "".join(
        "<tr>" + "".join(f"<td>{_text(row[name])}</td>" for name in columns) + "</tr>"
        for row in rows
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><table>{told}"
        f"</table><h2>{escape(caption)}</h2><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{lines}</tbody></table></body></html>"
    )


def _text(value: Any) -> str:
    return escape("" if value is None else str(value))
