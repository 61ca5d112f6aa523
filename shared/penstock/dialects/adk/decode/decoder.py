"""Decodes the events of Google ADK (`POST /run_sse`, versions 1.16 to 2.13) into canonical drafts.

ADK has no event for the start, the end or a pause of a run. When the stream ends, `end` finds the
result of the leg. If there are open requests, the run pauses. If an error was reported, the run has
failed or was cancelled. Otherwise the run is completed. ADK repeats the content of partial events
in a final event, and stores only the final event. So the decoder takes calls, state, artifacts,
usage and outputs only from events that are not partial.

The decoder leaves out fields that add nothing to the drafts. Such fields are an event's `id`,
`timestamp` and `content.role`, and the interim response of a call that waits for a confirmation or
a credential. If there is an `adk_request_*` call, `requestedToolConfirmations` and
`requestedAuthConfigs` are left out, too. Each other field without a place in the contract becomes a
`custom.event` named `adk.<key>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from penstock.dialects.adk.decode import failures, parts
from penstock.dialects.adk.decode.event import Event, custom, place_of, read
from penstock.dialects.adk.decode.extras import (
    Constants,
    emit_extras,
    emit_grounding,
    emit_state,
    emit_transfer,
)
from penstock.dialects.adk.decode.frames import AdkEvent, Content, NodeInfo, Part
from penstock.dialects.adk.decode.messages import Speaker
from penstock.dialects.adk.decode.redaction import scrubbed
from penstock.dialects.adk.decode.steps import Place, Steps
from penstock.dialects.adk.decode.tools import Tools
from penstock.dialects.adk.decode.usage import usage_of_answer
from penstock.dialects.adk.vocabulary import ABORTED, TOKENS
from penstock.dialects.base import (
    MAX_ITEMS,
    MAX_OPEN,
    AgentFacts,
    AgentKind,
    AgentType,
    Draft,
    Ids,
    Json,
    JsonObject,
    LimitReached,
    Pause,
    Source,
    cut_off,
    short,
)
from penstock.dialects.json import array, has_content, obj, objects, string, verbatim
from penstock.dialects.snapshots import AS_IS, DICT, PART, Snapshots, Table
from penstock.dialects.usage import USAGE, add_usage
from penstock.sse import Frame


class Agents:
    """Makes the `source` for each author of events.

    The outermost name in `nodeInfo.path` or `branch` is the root agent. In ADK 1.x, if the first
    event has no branch, its author is the root agent, unless the configuration says `kind:
    workflow`. The root agent's type is the configured kind, or `workflow` if the events show a
    graph. In a tree of ADK 2.x, no event names the root agent: all authors are workers, and the
    configured agent is the source of events about the run as a whole.
    """

    def __init__(self, agent: AgentFacts, steps: Steps) -> None:
        self.root: str | None = None
        self._agent = agent
        self._steps = steps
        self._known: dict[tuple[str, str], Source] = {}

    def notice(self, place: Place) -> None:
        if self.root is None:
            self.root = place.root
        if self.root is None and place.path is None and self._agent.kind != "workflow":
            self.root = place.author

    def source(self, author: str) -> Source:
        """Take an empty author for the run as a whole."""
        if not author:
            return self.outer()
        return self._source(author, self._root_type() if author == self.root else "worker", author)

    def outer(self) -> Source:
        if self.root:
            return self._source(self.root, self._root_type(), self.root)
        agent = self._agent
        return self._source(agent.id, self._root_type(), agent.name or agent.id)

    def snapshot(self) -> str | None:
        return self.root

    def restore(self, state: str | None) -> None:
        self.root = state

    def _root_type(self) -> AgentKind:
        return "workflow" if self._steps.graph else self._agent.kind

    def _source(self, agent_id: str, agent_type: AgentType, name: str) -> Source:
        key = (agent_id, agent_type)
        if key not in self._known:
            self._known[key] = {
                "agent_id": agent_id,
                "agent_type": agent_type,
                "agent_name": name,
                "team_name": None,
            }
        return self._known[key]


# Error texts for incomplete messages and failed runs for which the upstream sends no text.
_CUT = "the upstream's stream was cut off"
_CANCELLED = "the run was cancelled"
_UNREADABLE = "the upstream sent a frame that is no ADK event"


class AdkDecoder(Snapshots):
    """Decodes one run (see `penstock.dialects.base.Decoder`)."""

    STORED: ClassVar[Table] = {
        "over": ("_over", AS_IS),
        "ids": ("_ids", PART),
        "tools": ("_tools", PART),
        "steps": ("_steps", PART),
        "root": ("_agents", PART),
        "constants": ("_constants", PART),
        "usage": ("_usage", DICT),
        "summary": ("_summary", AS_IS),
        "value": ("_value", AS_IS),
    }

    def __init__(self, agent: AgentFacts) -> None:
        self._drop = agent.drop
        self._leg = 0
        self._n_frames = 0  # the number of frames of this leg
        self._over = False
        self._ids = Ids()
        self._tools = Tools()
        self._steps = Steps(agent.kind == "workflow")
        self._agents = Agents(agent, self._steps)
        self._constants = Constants()
        self._speakers: dict[Place, Speaker] = {}
        self._here: tuple[Place, Speaker] | None = None  # of the last event
        self._pending_error: failures.PendingError | None = None
        self._unreadable = False  # This leg had a frame that is not an event.
        # The place and the token counts of the last final event, if that event had a message; else
        # None.
        self._text_usage: tuple[Place, Json] | None = None
        self._usage: JsonObject = {}
        self._summary = ""
        self._value: Json = None

    def open(self, leg: int) -> Sequence[Draft | Pause]:
        self._leg = leg
        self._over = False  # the agent server said that it was stopped, and the run goes on
        self._n_frames = 0
        self._unreadable = False
        # A snapshot between two legs does not have it: a restart must not change the counts.
        self._text_usage = None
        return []

    def decided(self, items: Mapping[str, JsonObject]) -> Sequence[Draft]:
        self._tools.decided(items)
        return []

    def feed(self, frame: Frame) -> Sequence[Draft | Pause]:
        """Return none for a frame after the run's end."""
        if self._over:
            return []
        self._n_frames += 1
        out: list[Draft] = []
        raw = read(frame.data)
        if raw is None:
            self._not_an_event(frame.data, out)
        elif failures.is_failure(raw):
            self._fail(failures.read_failure(raw, self._pending_error), out)
        else:
            if self._pending_error:
                self._warn_of_pending_error(out)
            try:
                self._event(raw, out)
            except LimitReached as error:
                self._fail({"error": str(error), "code": "limit"}, out)
        return self._kept(out) if self._drop else out

    def end(self) -> Sequence[Draft | Pause]:
        """End a leg whose stream ended regularly: the run pauses or ends.

        If ADK 2.13 gets an answer for the second time, it sends an empty stream, because the run
        has already continued in another response. So a continue request with an empty stream fails
        the run with `outcome_unknown`. If the first leg's stream is empty, the agent had no output,
        and the run is completed with a warning.
        """
        if self._over:
            return []
        out: list[Draft] = []
        self._close_speakers(out, self._why_cut())
        if self._leg > 1 and not self._n_frames:
            error = "the upstream answered with an empty stream: it had this answer already"
            self._fail({"error": error, "code": "outcome_unknown"}, out)
            return out
        out += self._tools.refused(self._agents.outer())
        pause = self._tools.pause(self._constants.invocation_id)
        if pause:
            self._warn_of_pending_error(out)
            return [*out, pause]
        self._finish(out)
        return out

    def abort(self) -> Sequence[Draft | Pause]:
        """End the open messages of a stream that was cut off. Steps and calls stay open."""
        if self._over:
            return []
        out: list[Draft] = []
        self._close_speakers(out, cut_off(_CUT))
        self._warn_of_pending_error(out)
        return out

    # Events.

    def _event(self, raw: AdkEvent, out: list[Draft]) -> None:
        content: Content = obj(raw.get("content"))
        n_parts = len(array(content.get("parts")))
        LimitReached.check(n_parts, MAX_ITEMS, "parts in an event")
        place = place_of(raw)
        same_run = raw.get("invocationId") == self._constants.invocation_id
        if self._here and self._here[0] == place and same_run:
            speaker = self._here[1]
        else:
            speaker = self._move(place, raw, out)
        event = Event(raw, place, speaker, out)
        if raw.get("partial") is True:
            self._partial(event)
        else:
            self._final(event)

    def _move(self, place: Place, raw: AdkEvent, out: list[Draft]) -> Speaker:
        """Close the speakers that cannot be active beside the new place's speaker."""
        for other, speaker in list(self._speakers.items()):
            if other != place and not other.may_run_beside(place):
                self._close(speaker, out)
            if not speaker.is_open:
                del self._speakers[other]
        self._steps.notice(place)
        self._agents.notice(place)
        source = self._agents.source(place.author)
        invocation = self._constants.invocation(raw)
        if invocation:
            self._steps.run_id = self._steps.run_id or short(self._constants.invocation_id)
            out.append(Draft("custom.event", custom("invocation", invocation), source))
        speaks = has_content(raw.get("content"))
        step_id = self._steps.enter(place, source, out, speaks=speaks)
        speaker = self._speakers.get(place) or Speaker(
            source, step_id, self._ids, "user" if place.author == "user" else "assistant"
        )
        self._speakers[place] = speaker
        LimitReached.check(len(self._speakers), MAX_OPEN, "agents that speak at once")
        # `_move` is skipped for an event at the place `_here`. An event without content begins no
        # step, so its place is not kept. Otherwise the next event at this place would skip `_move`,
        # and its step would not begin.
        self._here = (place, speaker) if speaks else None
        return speaker

    def _partial(self, event: Event) -> None:
        speaker, out, event_id = event.speaker, event.out, event.id
        content: Content = obj(event.raw.get("content"))
        part: Part
        for part in objects(content.get("parts")):
            if speaker.at_end:  # a new answer begins, and the last answer got no final event
                self._close(speaker, out)
            piece = part.get("text")
            if isinstance(piece, str):
                if piece and part.get("thought") is True:
                    speaker.thought(piece, event_id, out)
                elif piece:
                    speaker.text(piece, event_id, out)
            elif "functionCall" in part:
                self._tools.arguments(obj(part["functionCall"]), event)
            elif media := parts.media(part):
                speaker.attach(media, event_id, out)
        if "finishReason" in event.raw:
            self._warn_of_stop(event)
            speaker.at_end = True
        if "usageMetadata" in event.raw:  # it repeats the counts of the answer's events before it
            speaker.unfinished_answer = event.raw
        self._text_usage = None

    def _final(self, event: Event) -> None:
        raw, speaker = event.raw, event.speaker
        reported = (speaker.warned, string(raw.get("finishReason")))
        self._warn_of_stop(event)
        pending_error = failures.pending_error(raw, speaker.step_id, reported)
        if pending_error:
            speaker.cut = speaker.cut or pending_error.cut()
            if "usageMetadata" not in raw:
                self._end_answer(speaker, event.out)
        message = None
        if pending_error or has_content(raw.get("content")):
            message = self._content(event)
        self._count_usage(event, message)
        emit_state(event)
        emit_transfer(event, self._steps)
        emit_grounding(event)
        self._node(event, message)
        emit_extras(event, self._constants, self._tools)
        self._pending_error = pending_error

    def _content(self, event: Event) -> JsonObject | None:
        """Return the data of the event's message, if it has one."""
        speaker, out = event.speaker, event.out
        texts: list[str] = []
        thoughts: list[str] = []
        media: list[JsonObject] = []
        whole: Content = obj(event.raw.get("content"))
        content: list[Part] = objects(whole.get("parts"))
        for part in content:
            piece = part.get("text")
            if isinstance(piece, str):
                (thoughts if part.get("thought") is True else texts).append(piece)
            elif converted := parts.media(part):
                media.append(converted)
        streamed = speaker.streamed_calls
        speaker.complete_thought("".join(thoughts), event.id, out)
        extra = {"parts": media, "citations": obj(event.raw.get("citationMetadata"))}
        message = speaker.complete("".join(texts), extra, event.id, out)
        self._note_message(speaker, message)
        message_id = message["message_id"] if message else None
        for part in content:
            if "functionCall" in part:
                self._tools.call(obj(part["functionCall"]), streamed, message_id, event)
            elif "functionResponse" in part:
                self._tools.response(obj(part["functionResponse"]), event)
        return message

    def _note_message(self, speaker: Speaker, message: JsonObject | None) -> None:
        if message and message["role"] == "assistant":
            self._steps.message_completed(speaker.step_id, message["content"])
            self._summary = message["content"] or self._summary

    def _count_usage(self, event: Event, message: JsonObject | None) -> None:
        counts = event.raw.get("usageMetadata")
        before, self._text_usage = self._text_usage, None
        if not isinstance(counts, dict):
            return
        if message:
            self._text_usage = (event.place, counts)
        elif before == (event.place, counts):
            # ADK 1.16 sends the text and the call of one answer as two events with equal counts.
            # The sum would be twice the tokens of the answer, so the decoder adds only the counts
            # of the text.
            return
        add_usage(self._usage, counts, TOKENS)
        event.speaker.unfinished_answer = None
        event.emit(USAGE, usage_of_answer(event.raw) or {})

    def _node(self, event: Event, message: JsonObject | None) -> None:
        raw, actions, place, speaker = event.raw, event.actions, event.place, event.speaker
        node: NodeInfo = obj(raw.get("nodeInfo"))
        output = raw.get("output")
        structured = output is not None
        if not structured and node.get("messageAsOutput") is True and message:
            output = message["content"]
        paths = [path for path in array(node.get("outputFor")) if string(path)]
        if structured and not paths and place.path:
            paths = [place.path]
        if paths:
            is_result = self._steps.output(place, paths, output, speaker.source, event.out)
            if is_result and structured:
                self._value = output
        elif structured:
            event.custom("output", output)
        route = actions.get("route")
        if route is not None and speaker.step_id:
            labels = route if isinstance(route, list) else [route]
            self._steps.chose(speaker.step_id, ", ".join(map(verbatim, labels)))
        elif route is not None:
            event.custom("route", route)
        if actions.get("endOfAgent") is True:
            self._steps.left(place, event.out)
            self._here = None  # so that the next event of this agent begins a new turn

    # Errors and ends.

    def _warn_of_stop(self, event: Event) -> None:
        found = failures.stop_warning(event.raw)
        if found and event.speaker.warned != found[0]:
            event.speaker.warned = found[0]
            event.speaker.cut = failures.cut_short(found[0], found[1]["message"])
            event.emit("system.warning", found[1])

    def _warn_of_pending_error(self, out: list[Draft]) -> None:
        pending_error, self._pending_error = self._pending_error, None
        if pending_error:
            if pending_error.is_exception:
                self._steps.fail(pending_error.step_id, pending_error.error(), out)
            source = self._agents.outer()
            out.append(
                Draft(
                    "system.warning", pending_error.warning(), source, None, pending_error.step_id
                )
            )

    def _not_an_event(self, data: bytes, out: list[Draft]) -> None:
        raw = data.decode("utf-8", "replace")
        if failures.is_unescaped_failure(raw):
            self._fail(failures.read_unescaped(raw), out)
            return
        self._unreadable = True
        out.append(Draft("custom.event", custom("frame", scrubbed(raw)), self._agents.outer()))

    def _fail(self, data: JsonObject, out: list[Draft]) -> None:
        self._close_speakers(out, cut_off(data["error"]))
        if self._pending_error:
            self._steps.fail(self._pending_error.step_id, self._pending_error.error(), out)
        source = self._agents.outer()
        self._steps.fail_workflow(failures.error_of(data), source, out)
        out.append(Draft("lifecycle.failed", data, source))
        self._over = True

    def _finish(self, out: list[Draft]) -> None:
        pending_error = self._pending_error
        if self._unreadable:
            self._fail(failures.failure(_UNREADABLE), out)
        elif pending_error and pending_error.code == ABORTED:
            data = {"reason": "user_stop", "confirmed": True}
            out.append(Draft("lifecycle.cancelled", data, self._agents.outer()))
        elif pending_error and pending_error.is_exception:
            self._fail(pending_error.failure(), out)
        else:
            self._complete(out)
        self._over = True

    def _complete(self, out: list[Draft]) -> None:
        self._warn_of_pending_error(out)
        source = self._agents.outer()
        if not self._n_frames:
            warning = {"message": "the upstream sent no event", "code": "empty_stream"}
            out.append(Draft("system.warning", warning, source))
        self._steps.complete_all(out)
        data: JsonObject = {"summary": self._summary}
        if self._value is not None:
            data["value"] = self._value
        if self._usage:
            data["usage"] = self._usage
        out.append(Draft("lifecycle.completed", data, source))

    def _close(self, speaker: Speaker, out: list[Draft]) -> None:
        self._end_answer(speaker, out)
        self._note_message(speaker, speaker.close(out))

    def _end_answer(self, speaker: Speaker, out: list[Draft]) -> None:
        """Tell the tokens of an answer that gets no final event with counts."""
        answer, speaker.unfinished_answer = speaker.unfinished_answer, None
        if answer is not None and (used := usage_of_answer(answer)) is not None:
            out.append(speaker.draft(USAGE, used))

    def _why_cut(self) -> JsonObject | None:
        """Return None if the run is completed or waits: streamed text then counts as complete."""
        if self._unreadable:
            return cut_off(_UNREADABLE)
        if self._pending_error and self._pending_error.code == ABORTED:
            return cut_off(_CANCELLED)
        if self._pending_error and self._pending_error.is_exception:
            return self._pending_error.cut()
        return None

    def _close_speakers(self, out: list[Draft], cut: JsonObject | None) -> None:
        for speaker in self._speakers.values():
            speaker.cut = speaker.cut or cut
            self._close(speaker, out)
        self._speakers = {}
        self._here = None

    def _kept(self, out: list[Draft]) -> list[Draft]:
        return [
            draft
            for draft in out
            if draft.type != "custom.event"
            or draft.data["name"].removeprefix("adk.") not in self._drop
        ]
