"""Makes the output items of OpenAI's Responses API (openai 3.54), and the ids of requests. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from penstock.dialects.approvals import CONFIRMATIONS
from penstock.dialects.base import Json, JsonObject, has_failed
from penstock.dialects.json import obj, objects, verbatim

_PREFIX: Final = "mcpr_"
_DIGEST_CHARS: Final = 32
_COUNTS: Final = (
    *("input_tokens", "output_tokens", "total_tokens"),
    *("cached_input_tokens", "reasoning_tokens"),
)


@dataclass(frozen=True, slots=True)
class RequestId:
    """What a request's id says: `mcpr_<approval id>.<the first half of the item's digest>`. The
    client sends the id back unchanged, so an answer names exactly what the client was shown."""

    approval_id: str
    digest: str

    @classmethod
    def of(cls, approval_id: str, item: JsonObject) -> Self:
        digest = str(item.get("digest", "")).removeprefix("sha256:")
        return cls(approval_id, digest[:_DIGEST_CHARS])

    @classmethod
    def parse(cls, request_id: str) -> Self | None:
        """Return None for any other text, also for an id without its whole digest."""
        approval_id, _, digest = request_id.removeprefix(_PREFIX).partition(".")
        is_whole = request_id.startswith(_PREFIX) and len(digest) == _DIGEST_CHARS
        return cls(approval_id, digest) if is_whole and approval_id else None

    def __str__(self) -> str:
        return f"{_PREFIX}{self.approval_id}.{self.digest}"


def text_part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def summary_part(text: str) -> JsonObject:
    return {"type": "summary_text", "text": text}


def call(data: JsonObject, agent: str, request_id: str | None) -> JsonObject:
    item = {"type": "mcp_call", "server_label": agent, "name": data["tool"], "arguments": ""}
    return {**item, "output": None, "error": None, "approval_request_id": request_id}


def arguments(data: JsonObject) -> str:
    return data.get("args_text") or verbatim(obj(data.get("args")))


def result(data: JsonObject) -> JsonObject:
    """Return the fields of a call that has ended."""
    value, error, failed = data.get("result"), data.get("error"), has_failed(data)
    shown = None if value is None or (failed and value == error) else verbatim(value)
    outcome = data.get("outcome", "ok")
    why = (f"{outcome}: {error}" if error not in (None, outcome) else outcome) if failed else None
    return {"status": "failed" if failed else "completed", "output": shown, "error": why}


def request(approval: JsonObject, item: JsonObject, agent: str) -> JsonObject:
    """Return the item with which a client is asked: a question of yes or no, or for a value."""
    asked = str(RequestId.of(approval["approval_id"], item))
    shown = item.get("args") or {}
    if not item.get("tool"):
        names = ("description", "input_schema", "options")
        shown = {name: item[name] for name in names if item.get(name) is not None} | shown
    named = {"name": item.get("tool") or item["kind"], "arguments": verbatim(shown)}
    if item["kind"] in CONFIRMATIONS:
        return {"id": asked, "type": "mcp_approval_request", "server_label": agent, **named}
    call_id = {"call_id": asked, "status": "completed"}
    return {"id": f"fc_{asked}", "type": "function_call", **call_id, **named}


def question(text: str) -> JsonObject:
    fields = {"id": "msg_input", "type": "message", "role": "user", "status": "completed"}
    return {**fields, "content": [{"type": "input_text", "text": text}]}


def answers(approval: JsonObject, decided: Json) -> list[JsonObject]:
    """Return the items that answer the requests of an approval."""
    asked = {each["item_id"]: each for each in objects(approval.get("items"))}
    return [
        _answer(str(RequestId.of(approval["approval_id"], item)), item, each)
        for each in objects(decided)
        if (item := asked.get(each.get("item_id"))) is not None
    ]


def _answer(request_id: str, item: JsonObject, decided: JsonObject) -> JsonObject:
    approved, named = decided.get("decision") == "approve", {"id": f"in_{request_id}"}
    if item["kind"] not in CONFIRMATIONS and approved:
        output = {"call_id": request_id, "output": verbatim(decided.get("value"))}
        return {**named, "type": "function_call_output", **output}
    answer = {"approval_request_id": request_id, "approve": approved}
    return {**named, "type": "mcp_approval_response", **answer, "reason": decided.get("note")}


def search(documents: Json) -> JsonObject:
    found = [
        {"file_id": each.get("id", ""), "filename": each.get("title") or each.get("url") or ""}
        | {"score": each.get("score"), "text": each.get("content", ""), "attributes": {}}
        for each in objects(documents)
    ]
    return {"type": "file_search_call", "status": "completed", "queries": [], "results": found}


def usage(used: Iterable[JsonObject]) -> JsonObject | None:
    """Return the sum of several events `llm.usage`; None if there are none."""
    total: Counter[str] = Counter()
    for each in used:
        counts = Counter({name: each.get(name) or 0 for name in _COUNTS})
        both = counts["input_tokens"] + counts["output_tokens"]
        total.update({**counts, "total_tokens": both or counts["total_tokens"]})
    return (
        {
            "input_tokens": total["input_tokens"],
            "input_tokens_details": {"cached_tokens": total["cached_input_tokens"]},
            "output_tokens": total["output_tokens"],
            "output_tokens_details": {"reasoning_tokens": total["reasoning_tokens"]},
            "total_tokens": total["total_tokens"],
        }
        if total
        else None
    )
