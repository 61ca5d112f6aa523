"""Encodes canonical events into OpenAI's Chat Completions, by way of the events of a response.

The content is the response's text. Reasoning and the agent's calls are `reasoning_content`, which
chat interfaces show apart; `tool_calls` would ask the client to run them. The protocol has no way
to ask for a decision, so a pause ends the content with a text, with links if the edge has made
them, and with a reference, by which the next request of the conversation gets the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.dialects.base import Json, JsonObject, frame
from penstock.dialects.openai import items
from penstock.dialects.openai.responses import ResponsesEncoder
from penstock.sse import Frame

DONE: Final = b"[DONE]"  # the data of the frame after those of a leg
WAITS: Final = (
    "This waits for a decision. Whoever may decide can do so under the link, once; a message "
    "decides nothing. Send any message afterwards to get the rest."
)
_SHOWN_CHARACTERS: Final = 500


@dataclass(slots=True, kw_only=True)
class ChatEncoder(ResponsesEncoder):
    """Encodes a leg (see `penstock.dialects.base.Encoder`). Without `streaming`, the only frame is
    the completion, or the error of a run that has failed."""

    streaming: bool = True
    include_usage: bool = False
    links: dict[str, str] = field(default_factory=dict)  # the address of a link by approval id
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _named: JsonObject = field(default_factory=dict)  # the fields that all chunks have
    # Agents may speak at once. The content has one message after another, so the pieces of others
    # wait for the end of the message at `_index`.
    _index: int | None = None
    _pieces: dict[int, list[str]] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)
    _has_spoken: bool = False

    def _say(self, kind: str, body: JsonObject) -> None:
        match kind:
            case "created":
                begun = body["response"]
                named = {"id": f"chatcmpl-{begun['id'].removeprefix('resp_')}"}
                self._named = {**named, "created": begun["created_at"], "model": begun["model"]}
                self._chunk({"role": "assistant", "content": ""})
            case "output_text.delta":
                self._pieces.setdefault(body["output_index"], []).append(body["delta"])
                self._speak()
            case "reasoning_summary_text.delta":
                self._write("reasoning_content", body["delta"])
            case "output_item.done":
                self._ended.add(body["output_index"])
                self._item(body["item"])
            case "completed":
                self._finish(body["response"])
            case "failed" | "incomplete":
                error = body["response"]["error"] or {"message": "the run was cancelled"}
                self._frames.append(failure(body["response"]["status"], error["message"]))

    def _item(self, item: JsonObject) -> None:
        match item["type"]:
            case "message":
                self._speak()
            case "reasoning":
                self._write("reasoning_content", "\n\n")
            case "mcp_call":
                ended = item["error"] or item["output"] or item["status"]
                self._write("reasoning_content", f"{_called(item)}: {_short(ended)}\n\n")

    def _finish(self, response: JsonObject) -> None:
        asks = [line for each in response["output"] if (line := _asked(each, self.links))]
        if asks:
            before = "\n\n" if self._has_spoken else ""
            lines = [WAITS, *asks, f"(reference {self.following})"]
            self._write("content", before + "\n".join(lines))
        usage = _usage(response["usage"])
        if not self.streaming:
            said = {name: "".join(text) for name, text in self._texts.items()}
            message = {"role": "assistant", "content": "", "refusal": None, **said}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
            self._send("chat.completion", [choice], usage=usage)
            return
        self._chunk({}, "stop")
        if self.include_usage:
            self._send("chat.completion.chunk", [], usage=usage)

    def _speak(self) -> None:
        if self._index in self._ended:
            self._index = None
        while self._pieces:
            begins = self._index is None
            if self._index is None:
                self._index = next(iter(self._pieces))
            if pieces := self._pieces.pop(self._index, None):
                text = "".join(pieces)
                before = "\n\n" if begins and self._has_spoken else ""
                self._write("content", before + text)
                self._has_spoken = True
            if self._index not in self._ended:
                return
            self._index = None

    def _write(self, where: str, text: str) -> None:
        if not self.streaming:
            self._texts.setdefault(where, []).append(text)
        self._chunk({where: text})

    def _chunk(self, delta: JsonObject, finish: str | None = None) -> None:
        if self.streaming:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            self._send("chat.completion.chunk", [choice])

    def _send(self, kind: str, choices: list[JsonObject], **more: Json) -> None:
        self._frames.append(frame({**self._named, "object": kind, "choices": choices, **more}))


def failure(code: str, text: str) -> Frame:
    return frame({"error": {"message": text, "type": "server_error", "param": None, "code": code}})


def _asked(item: JsonObject, links: Mapping[str, str]) -> str | None:
    """Return a line for an item that asks for a decision; None for any other item."""
    asked = items.RequestId.parse(item.get("call_id") or item["id"])
    if asked is None:
        return None
    link = links.get(asked.approval_id, f"approval {asked.approval_id}")
    return f"- {_called(item)}: {link}"


def _called(item: JsonObject) -> str:
    return f"{item['name']}({_short(item['arguments'])})"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _usage(usage: JsonObject | None) -> JsonObject | None:
    return usage and {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": usage["input_tokens_details"],
        "completion_tokens_details": usage["output_tokens_details"],
    }
