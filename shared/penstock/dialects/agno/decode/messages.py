"""Decodes the messages and thoughts of each run.

A message ends at RunContentCompleted, and also when a tool call starts. Agno sends
RunContentCompleted only once, at the very end. If messages ended only there, the texts before and
after a call would be one message. Clients that show messages and calls in order would then show the
answer above the call, although the answer uses the call's result.
"""

from __future__ import annotations

from collections import Counter

from penstock.dialects.agno.decode.agents import Agents, Message, Run
from penstock.dialects.agno.decode.frames import AgnoFrame
from penstock.dialects.agno.vocabulary import TOKENS
from penstock.dialects.base import Draft, Json, JsonObject, append_text, cut_off
from penstock.dialects.json import obj, string, text, without_none

_ROLE = "assistant"


def _citations(value: Json) -> JsonObject | None:
    """Return None for the three empty lists that end every message."""
    return value if isinstance(value, dict) and any(value.values()) else None


class Messages:
    """Decodes messages and thoughts, with own ids `msg-<leg>-<n>` and `think-<leg>-<n>`."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._leg = 0
        self._made: Counter[str] = Counter()

    def open(self, leg: int) -> None:
        self._leg = leg
        self._made.clear()

    def content(self, run: Run, body: AgnoFrame) -> list[Draft]:
        # The most frequent event: a piece of text or thought, or structured output.
        drafts: list[Draft] = []
        content = body.get("content")
        thought = body.get("reasoning_content")
        if thought and isinstance(thought, str):
            append_text(run.thoughts, thought)
            drafts.append(self._thought(run, thought))
        if content and isinstance(content, str):
            message = run.message or self._begin(run, drafts)
            append_text(message.parts, content)
            data = {"content": content, "message_id": message.id}
            drafts.append(self._agents.draft(run, "llm.stream", data))
        elif content is not None and content != "":
            message = run.message or self._begin(run, drafts)
            message.value = content
            message.content_type = string(body.get("content_type"))
        if run.message is not None and (cited := _citations(body.get("citations"))):
            run.message.citations = cited
        return drafts

    def missing_answer(self, run: Run, body: AgnoFrame) -> list[Draft]:
        """Return the drafts for an answer that only the last event of a run contains: if Agno
        replays a stream from its database, there is no RunContent.

        The answer of a workflow is often the last message of an agent in one of its steps, and the
        result is empty. If it differs, for example because a function made it, the workflow itself
        gets a message.
        """
        if run.kind == "workflow":
            answer_text = text(body.get("content"))
            if (
                run.is_inner
                or run.message is not None
                or answer_text in ("", self._agents.last_message_text)
            ):
                return []
        elif run.spoke:
            return []
        answer: AgnoFrame = {
            "content": body.get("content"),
            "content_type": body.get("content_type"),
            "citations": body.get("citations"),
        }
        return self.content(run, answer)

    def completed(self, run: Run, _body: AgnoFrame) -> list[Draft]:
        return self.close(run)

    def close(self, run: Run, error: str | None = None) -> list[Draft]:
        return self._end_thoughts(run) + self._end_message(run, error)

    def interrupt(self, run: Run) -> list[Draft]:
        """Thoughts with a ReasoningStarted stay open."""
        thoughts = [] if run.announced else self._end_thoughts(run)
        return thoughts + self._end_message(run)

    def reasoning_started(self, run: Run, _body: AgnoFrame) -> list[Draft]:
        run.announced = True
        return []

    def reasoning_delta(self, run: Run, body: AgnoFrame) -> list[Draft]:
        thought = string(body.get("reasoning_content"))
        if thought is None:
            return []
        append_text(run.thoughts, thought)
        return [self._thought(run, thought)]

    def reasoning_step(self, run: Run, body: AgnoFrame) -> list[Draft]:
        """Its `reasoning_content` repeats all earlier thoughts."""
        step = obj(body.get("content"))
        thought = string(body.get("reasoning_content"))
        if thought is None:
            thought = string(step.get("reasoning"))
        else:
            known = "".join(run.thoughts)
            run.thoughts = [thought]
            thought = thought.removeprefix(known)
        return [self._thought(run, thought, string(step.get("title")))] if thought else []

    def reasoning_completed(self, run: Run, _body: AgnoFrame) -> list[Draft]:
        return self._end_thoughts(run)

    def _begin(self, run: Run, drafts: list[Draft]) -> Message:
        drafts += self._end_thoughts(run)
        run.message = Message(self._id("msg"))
        run.spoke = True
        data = {"message_id": run.message.id, "role": _ROLE}
        drafts.append(self._agents.draft(run, "llm.message_started", data))
        return run.message

    def _end_message(self, run: Run, error: str | None = None) -> list[Draft]:
        message = run.message
        if message is None:
            return []
        run.message = None
        run.last_text = "".join(message.parts) or text(message.value)
        self._agents.last_message_text = run.last_text
        data = {
            "message_id": message.id,
            "role": _ROLE,
            "content": run.last_text,
            "value": message.value,
            "content_type": message.content_type,
            "citations": message.citations,
        }
        if error is not None:
            data |= cut_off(error)
        return [self._agents.draft(run, "llm.message_completed", without_none(data))]

    def _thought(self, run: Run, thought: str, title: str | None = None) -> Draft:
        if run.reasoning_id is None:
            run.reasoning_id = self._id("think")
        data = {"thought": thought, "reasoning_id": run.reasoning_id}
        if title is not None:
            data["title"] = title
        return self._agents.draft(run, "llm.reasoning", data)

    def _end_thoughts(self, run: Run) -> list[Draft]:
        """Emit one more event, which has an empty thought and `final`."""
        run.announced = False
        if run.reasoning_id is None:
            return []
        data = {"thought": "", "reasoning_id": run.reasoning_id, "final": True}
        run.reasoning_id = None
        return [self._agents.draft(run, "llm.reasoning", data)]

    def _id(self, prefix: str) -> str:
        self._made[prefix] += 1
        return f"{prefix}-{self._leg}-{self._made[prefix]}"


def usage(metrics: JsonObject) -> JsonObject | None:
    """Agno 2.3 counts a continued run's first leg twice."""
    counts = {
        ours: metrics[theirs] for ours, theirs in TOKENS.items() if type(metrics.get(theirs)) is int
    }
    return counts or None


def other_metrics(metrics: JsonObject) -> JsonObject | None:
    others = {
        name: value
        for name, value in metrics.items()
        if name not in TOKENS.values() and value not in (None, {}, [])
    }
    return others or None


def answer_of(run: Run, body: AgnoFrame) -> JsonObject:
    content = body.get("content")
    content_type = string(body.get("content_type"))
    metrics = obj(body.get("metrics"))
    return without_none(
        {
            "summary": text(content) or run.last_text,
            "value": None if isinstance(content, str) else content,
            "content_type": content_type if content_type != "str" else None,
            "usage": usage(metrics),
            "metrics": other_metrics(metrics),
        }
    )
