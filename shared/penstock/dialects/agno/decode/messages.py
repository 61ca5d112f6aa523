"""What runs say and think: messages and trains of thought, of each run its own.

A message ends at RunContentCompleted and also where a tool call starts. Agno says
RunContentCompleted once, at the very end; a message kept open until then would carry text from
before and after the call under one id, and every client that shows messages and calls in their
order would show the answer above the call that it came from.
"""

from __future__ import annotations

from collections import Counter

from penstock.dialects.agno.decode.agents import Agents, Message, Run
from penstock.dialects.base import Draft, Json, JsonObject, cut_off
from penstock.dialects.json import obj, present, string, text
from penstock.dialects.text_buffer import append_text

_ROLE = "assistant"


def _citations(value: Json) -> JsonObject | None:
    """Citations that hold a source. Agno ends every message with three empty lists."""
    return value if isinstance(value, dict) and any(value.values()) else None


class Messages:
    """Agno has no message ids: `msg-<leg>-<n>` and `think-<leg>-<n>` are made here."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._leg = 0
        self._made: Counter[str] = Counter()

    def open(self, leg: int) -> None:
        """A leg begins, with ids of its own."""
        self._leg = leg
        self._made.clear()

    def content(self, run: Run, body: JsonObject) -> list[Draft]:
        """RunContent: a piece of text, of thought, or structured output. The hot path."""
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

    def missing_answer(self, run: Run, body: JsonObject) -> list[Draft]:
        """The answer of a run that nobody has said yet.

        A stream that is read again from Agno's database has no RunContent: the text is only in
        RunCompleted. A workflow's answer is often what its last step's agent has just said; where
        it is not (a function made it, or a step after the last agent), the workflow says it.
        """
        if run.kind == "workflow":
            said = text(body.get("content"))
            if run.inner or run.message is not None or said in ("", self._agents.last_message_text):
                return []
        elif run.spoke:
            return []
        answer = {key: body.get(key) for key in ("content", "content_type", "citations")}
        return self.content(run, answer)

    def completed(self, run: Run, _body: JsonObject) -> list[Draft]:
        """RunContentCompleted; it also comes when there was no content."""
        return self.close(run)

    def close(self, run: Run, error: str | None = None) -> list[Draft]:
        """Ends what the run is saying and thinking; `error` is why its message is not whole."""
        return self._end_thoughts(run) + self._end_message(run, error)

    def interrupt(self, run: Run) -> list[Draft]:
        """A tool call starts. Announced thoughts go on over the calls that they are made of."""
        thoughts = [] if run.announced else self._end_thoughts(run)
        return thoughts + self._end_message(run)

    def reasoning_started(self, run: Run, _body: JsonObject) -> list[Draft]:
        """Nothing is said before there is a thought."""
        run.announced = True
        return []

    def reasoning_delta(self, run: Run, body: JsonObject) -> list[Draft]:
        """ReasoningContentDelta: a piece of a thought."""
        thought = string(body.get("reasoning_content"))
        if thought is None:
            return []
        append_text(run.thoughts, thought)
        return [self._thought(run, thought)]

    def reasoning_step(self, run: Run, body: JsonObject) -> list[Draft]:
        """ReasoningStep: its `reasoning_content` repeats all thoughts; only new ones are said."""
        step = obj(body.get("content"))
        thought = string(body.get("reasoning_content"))
        if thought is None:
            thought = string(step.get("reasoning"))
        else:
            known = "".join(run.thoughts)
            run.thoughts = [thought]
            thought = thought.removeprefix(known)
        return [self._thought(run, thought, string(step.get("title")))] if thought else []

    def reasoning_completed(self, run: Run, _body: JsonObject) -> list[Draft]:
        """ReasoningCompleted repeats the steps; text may have ended the thoughts before."""
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
        return [self._agents.draft(run, "llm.message_completed", present(data))]

    def _thought(self, run: Run, thought: str, title: str | None = None) -> Draft:
        if run.reasoning_id is None:
            run.reasoning_id = self._id("think")
        data = {"thought": thought, "reasoning_id": run.reasoning_id}
        if title is not None:
            data["title"] = title
        return self._agents.draft(run, "llm.reasoning", data)

    def _end_thoughts(self, run: Run) -> list[Draft]:
        """The end of a train of thought has no words of its own: `final` stands with ""."""
        run.announced = False
        if run.reasoning_id is None:
            return []
        data = {"thought": "", "reasoning_id": run.reasoning_id, "final": True}
        run.reasoning_id = None
        return [self._agents.draft(run, "llm.reasoning", data)]

    def _id(self, prefix: str) -> str:
        self._made[prefix] += 1
        return f"{prefix}-{self._leg}-{self._made[prefix]}"
