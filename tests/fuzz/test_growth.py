"""Work and memory grow linearly with the size of a hostile stream, and not with its square.

The tests count bytecodes and bytes instead of seconds. Each row makes a stream with n of something;
the work for 2n may be at most 2.4 times the work for n.
"""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import pytest

from fuzz.cases import no_longer_than
from fuzz.recorded import PROTOCOLS
from penstock import sse
from penstock.bus.messages import RawFrame
from penstock.dialects.adk.encode.encoder import AdkEncoder
from penstock.dialects.agno.encode.encoder import AgnoEncoder
from penstock.dialects.agui.decode.chunks import Chunks
from penstock.dialects.agui.decode.transcript import Transcript, without_unanswered_calls
from penstock.dialects.agui.encode.memory import Memory
from penstock.dialects.agui.shared_state import State
from penstock.dialects.base import MAX_OPEN
from penstock.dialects.decoders import DECODERS
from penstock.sse import Parser
from penstock_normalizer.fold.run_fold import RunFold
from support.drive.short import in_short
from support.fakes.raw import RUN_ID
from support.recorded.canonical import event as canonical

N = 150
# the most that the work may grow when twice as much is sent; quadratic work would grow by 4
GROWTH = 2.4

Rows = Callable[[int], Iterable[bytes]]


def agno(event: str, **fields: Any) -> bytes:
    """Return a frame of the outer run, unless `fields` name another run."""
    body = {"event": event, "agent_id": "a", "run_id": "r", **fields}
    return sse.encode(json.dumps(body).encode(), event=event)


def adk(*parts: dict[str, Any], **fields: Any) -> bytes:
    """Return an event of ADK with these parts."""
    body = {"author": "a", "id": "e", "invocationId": "i", "content": {"parts": parts}, **fields}
    return sse.encode(json.dumps(body).encode())


def agui(type: str, **fields: Any) -> bytes:
    """Return an event of AG-UI."""
    return sse.encode(json.dumps({"type": type, **fields}).encode())


def tool(id: str, **fields: Any) -> dict[str, Any]:
    """Return a tool as Agno's frames describe it."""
    return {"tool_call_id": id, "tool_name": "t", "tool_args": {"task": "x"}, **fields}


def _asked(number: int) -> dict[str, Any]:
    return tool("c", requires_confirmation=True, tool_args={"n": number})


AGNO: dict[str, Rows] = {
    "calls that never end": lambda n: (
        agno("ToolCallStarted", tool=tool(f"{i}")) for i in range(n)
    ),
    "calls of one id": lambda n: (agno("ToolCallStarted", tool=tool("c")) for i in range(n)),
    "failures told once": lambda n: (
        agno(event, tool=tool(f"{i}"), error="no")
        for i in range(n)
        for event in ("ToolCallStarted", "ToolCallError")
    ),
    "tasks of a team": lambda n: (
        agno(event, agent_id=None, team_id="t", run_id="r", tool=tool(f"{i}"))
        for i in range(n)
        for event in ("TeamToolCallStarted", "TeamToolCallCompleted")
    ),
    "inner runs": lambda n: (
        agno("RunStarted", run_id=f"{i}", parent_run_id="r") for i in range(n)
    ),
    "an inner run again and again": lambda n: (
        agno(event, run_id="m", parent_run_id="r")
        for _ in range(n)
        for event in ("RunStarted", "RunCompleted")
    ),
    "a pause for calls of one id": lambda n: [
        agno("RunPaused", tools=[_asked(i) for i in range(n)])
    ],
    "a pause for gates of one id": lambda n: [
        agno(
            "WorkflowPaused",
            step_requirements=[{"step_id": "s", "requires_confirmation": True}] * n,
        )
    ],
    "thoughts that repeat": lambda n: (
        agno("ReasoningStep", content={"reasoning": "x"}, reasoning_content="x" * i)
        for i in range(n)
    ),
    "steps": lambda n: (agno("StepStarted", step_id="s", step_name="s") for _ in range(n)),
    "steps that end twice": lambda n: (
        agno(event, step_id=f"{i}")
        for i in range(n)
        for event in ("StepStarted", "StepCompleted", "StepCompleted")
    ),
    "a message": lambda n: (agno("RunContent", content="x") for _ in range(n)),
}
ADK: dict[str, Rows] = {
    "calls of one id in one event": lambda n: [
        adk(*({"functionCall": {"id": "c", "name": "t", "args": {"n": i}}} for i in range(n)))
    ],
    "calls without ids": lambda n: (
        adk({"functionCall": {"name": "t", "args": {"n": i}}}) for i in range(n)
    ),
    "calls and answers": lambda n: [
        adk(*({"functionCall": {"id": f"{i}", "name": "t", "args": {}}} for i in range(n))),
        adk(*({"functionResponse": {"id": f"{i}", "name": "t"}} for i in reversed(range(n)))),
    ],
    "answers to nothing": lambda n: [
        adk(*({"functionCall": {"id": f"{i}", "name": "t", "args": {}}} for i in range(n))),
        adk(*({"functionResponse": {"id": f"x{i}", "name": "u"}} for i in range(n))),
    ],
    "requests": lambda n: [
        adk(
            *(
                {
                    "functionCall": {
                        "id": f"{i}",
                        "name": "adk_request_confirmation",
                        "args": {"originalFunctionCall": {"id": f"o{i}", "name": "t", "args": {}}},
                    }
                }
                for i in range(n)
            )
        )
    ],
    "authors": lambda n: (adk({"text": "x"}, author=f"{i}") for i in range(n)),
    "branches that all speak": lambda n: (
        adk({"text": "x"}, author=f"{i}", branch=f"b.{i}", partial=True) for i in range(n)
    ),
    "one step after another": lambda n: (
        adk({"text": "x"}, author=f"{i % 3}", branch=f"b.{i}") for i in range(n)
    ),
    "nodes": lambda n: (
        adk({"text": "x"}, author="w", nodeInfo={"path": f"w@1/{i}"}) for i in range(n)
    ),
    "a node of many": lambda n: [
        adk(
            author="w",
            nodeInfo={"path": "w@1/a", "outputFor": [f"w@1/{i}" for i in range(n)]},
            output=1,
        )
    ],
    "a deep node": lambda n: [
        adk({"text": "x"}, author="w", nodeInfo={"path": "/".join(["w"] * n)})
    ],
    "transfers": lambda n: (
        adk({"text": "x"}, author=f"{i}", actions={"transferToAgent": f"{i + 1}"}) for i in range(n)
    ),
    "routes": lambda n: (
        adk({"text": "x"}, author="w", nodeInfo={"path": "w@1/a"}, actions={"route": f"{i}"})
        for i in range(n)
    ),
    "arguments in pieces": lambda n: (
        adk(
            {"functionCall": {"name": f"{i}", "partialArgs": [], "willContinue": True}},
            partial=True,
        )
        for i in range(n)
    ),
    "pieces of calls, then the calls": lambda n: [
        *(
            adk({"functionCall": {"id": f"{i}", "name": "t", "partialArgs": []}}, partial=True)
            for i in range(n)
        ),
        adk(*({"functionCall": {"id": f"{i}", "name": "t"}} for i in reversed(range(n)))),
    ],
    "texts with one id": lambda n: (adk({"text": "x"}) for _ in range(n)),
    "partial texts": lambda n: (adk({"text": "x"}, partial=True) for _ in range(n)),
    "sources": lambda n: [
        adk(
            {"text": "x"},
            groundingMetadata={
                "groundingChunks": [{"web": {"uri": "u"}}] * n,
                "groundingSupports": [
                    {
                        "segment": {"text": "s"},
                        "groundingChunkIndices": [0],
                        "confidenceScores": [1],
                    }
                ]
                * n,
            },
        )
    ],
}
AGUI: dict[str, Rows] = {
    "messages that never end": lambda n: (
        agui("TEXT_MESSAGE_CONTENT", messageId=f"{i}", delta="x") for i in range(n)
    ),
    "messages of one id": lambda n: (
        agui(type, messageId="m", delta="x")
        for _ in range(n)
        for type in ("TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END")
    ),
    "calls that have no answer, and text": lambda n: (
        agui(type, toolCallId=f"{i}", messageId="m", delta="x")
        for i in range(n)
        for type in ("TOOL_CALL_START", "TOOL_CALL_END", "TEXT_MESSAGE_CONTENT")
    ),
    "calls of one id": lambda n: (
        agui(type, toolCallId="c")
        for _ in range(n)
        for type in ("TOOL_CALL_START", "TOOL_CALL_END")
    ),
    "arguments": lambda n: [
        agui("TOOL_CALL_START", toolCallId="c"),
        *(agui("TOOL_CALL_ARGS", toolCallId="c", delta="x") for _ in range(n)),
    ],
    "steps that never end": lambda n: (
        frame
        for i in range(n)
        for frame in (agui("STEP_STARTED", stepName=f"{i}"), agui("STEP_FINISHED", stepName="0"))
    ),
    "subagents": lambda n: (
        agui("TEXT_MESSAGE_CONTENT", messageId="m", subagentRunId=f"{i}", delta="x")
        for i in range(n)
    ),
    "pieces of many subagents": lambda n: (
        agui("TEXT_MESSAGE_CHUNK", messageId=f"{i}", subagentRunId=f"{i}", delta="x")
        for i in range(n)
    ),
    "thoughts": lambda n: (
        agui("REASONING_MESSAGE_CONTENT", messageId=f"{i}", delta="x") for i in range(n)
    ),
    "a pause for interrupts of one id": lambda n: [
        agui("RUN_FINISHED", outcome={"type": "interrupt", "interrupts": [{"id": "i"}] * n})
    ],
    "a pause for calls": lambda n: [
        agui("RUN_FINISHED", outcome={"pendingToolCallIds": [f"{i}" for i in range(n)]})
    ],
    "changes of a large state": lambda n: [
        agui("STATE_SNAPSHOT", snapshot={f"{i}": i for i in range(n)}),
        *(agui("STATE_DELTA", delta=[{"op": "add", "path": "/a", "value": 1}]) for _ in range(n)),
    ],
    "usage": lambda n: [agui("RUN_FINISHED", usage=[{"inputTokens": 1}] * 3 * n)],
}
# The rows for which each frame must be compared with all kept entries, so that the number of kept
# entries has a limit.
LIMITED = {
    "agno": ("calls that never end", "calls of one id"),
    "adk": (
        *("calls of one id in one event", "calls without ids", "calls and answers"),
        *("answers to nothing", "requests", "branches that all speak", "one step after another"),
        *("nodes", "pieces of calls, then the calls", "a deep node"),
    ),
    "agui": ("steps that never end",),
}
BY_PROTOCOL: dict[str, dict[str, Rows]] = {"agno": AGNO, "adk": ADK, "agui": AGUI}


def table(limited: bool) -> list[Any]:
    """Return the rows that have a limit of their own, or the rows that have none."""
    return [
        pytest.param(protocol, rows, id=f"{protocol}-{name}")
        for protocol, table in BY_PROTOCOL.items()
        for name, rows in table.items()
        if (name in LIMITED[protocol]) is limited
    ]


def run_of(protocol: str) -> RunFold:
    """Return the fold of a run that has begun."""
    fold = RunFold(RUN_ID, DECODERS)
    facts = {"agent": "assistant", "protocol": protocol, "kind": "agent"}
    fold.feed(_raw("open", json.dumps(facts).encode(), 1))
    return fold


def _raw(kind: str, payload: bytes, sequence: int) -> RawFrame:
    received = "2026-11-20T10:00:00.000Z"
    return RawFrame(RUN_ID, "upstream", sequence, kind, 1, "pod/1", received, payload)


def bytecodes(work: Callable[[], object]) -> int:
    """Return how many bytecodes of Penstock's own code the work takes."""
    count = 0

    def step(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count += 1
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def work_of(protocol: str, rows: Rows, n: int) -> int:
    """Return the bytecodes for n of the row's frames and for the end of the run."""
    fold, body = run_of(protocol), b"".join(rows(n))

    def work() -> None:
        fold.feed(_raw("bytes", body, 2))
        fold.feed(_raw("end", b'{"outcome": "eof"}', 3))

    count = bytecodes(work)
    assert fold.error is None
    return count


@pytest.mark.parametrize(("protocol", "rows"), table(limited=False))
def test_twice_as_much_costs_twice_as_much(protocol: str, rows: Rows) -> None:
    assert work_of(protocol, rows, 2 * N) < GROWTH * work_of(protocol, rows, N)


@pytest.mark.parametrize(("protocol", "rows"), table(limited=True))
def test_what_cannot_be_found_at_once_has_a_limit_that_ends_the_run(
    protocol: str, rows: Rows
) -> None:
    few = run_of(protocol)
    ends = few.feed(_raw("bytes", b"".join(rows(20)), 2))
    assert not [placed for placed in ends if placed.data.get("code") == "limit"]
    many = run_of(protocol)
    *_, end = many.feed(_raw("bytes", b"".join(rows(MAX_OPEN + 2)), 2))
    assert (end.type, end.data["code"]) == ("lifecycle.failed", "limit")
    assert end.data["error"].startswith("the upstream has more than ")


CONVERSATION: dict[str, Rows] = {
    **AGUI,
    "messages, and more of the first": lambda n: (
        agui("TEXT_MESSAGE_CONTENT", messageId=id, delta="x")
        for i in range(n)
        for id in (f"{i}", "0")
    ),
    "answers": lambda n: (
        agui(type, toolCallId=f"{i}", content="x")
        for i in range(n)
        for type in ("TOOL_CALL_START", "TOOL_CALL_RESULT")
    ),
    "calls of one message": lambda n: (
        agui("TOOL_CALL_START", toolCallId=f"{i}", parentMessageId="m") for i in range(n)
    ),
}


# `make test` tries the rows of conversations alone, `make chaos` those of the decoder, too.
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(rows, id=name, marks=[pytest.mark.chaos] if name in AGUI else [])
        for name, rows in CONVERSATION.items()
    ],
)
def test_a_conversation_is_remembered_at_the_cost_of_what_is_said(rows: Rows) -> None:
    def work_for(n: int) -> int:
        chunks, transcript, state = Chunks(), Transcript(), State()
        events = [json.loads(frame.data) for frame in Parser().feed(b"".join(rows(n)))]

        def work() -> None:
            for event in events:
                for each in chunks.expand(event):
                    transcript.feed(each)
                    state.feed(each)
            without_unanswered_calls(transcript.messages)

        return bytecodes(work)

    assert work_for(2 * N) < GROWTH * work_for(N)


def test_a_client_that_comes_late_is_told_a_long_answer_at_the_cost_of_reading_it() -> None:
    n, delta = 100_000, "x" * 20
    memory = Memory()
    memory.apply({"type": "TEXT_MESSAGE_START", "messageId": "m"})
    memory.apply({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "t"})
    with no_longer_than(5):
        for _ in range(n):
            memory.apply({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": delta})
            memory.apply({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": delta})
    message, asking = memory.messages
    assert message["content"] == delta * n
    assert asking["toolCalls"][0]["function"]["arguments"] == delta * n


def test_a_conversation_of_many_messages_is_told_at_the_cost_of_what_is_said() -> None:
    def work_for(n: int) -> int:
        memory = Memory()
        events = [
            {"type": type, "messageId": f"{i}{type}", "toolCallId": f"{i}", "delta": "x"}
            | {"toolCallName": "t", "content": "x"}
            for type in ("TEXT_MESSAGE_START", "TOOL_CALL_START")
            for i in range(n)
        ] + [
            {"type": type, "messageId": f"{i}TEXT_MESSAGE_START", "toolCallId": f"{i}"}
            | {"delta": "x"}
            for i in range(n)
            for type in ("TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS", "TEXT_MESSAGE_END")
        ]
        return bytecodes(lambda: [*map(memory.apply, events), memory.messages])

    assert work_for(2 * N) < GROWTH * work_for(N)


@pytest.mark.parametrize("make", [AgnoEncoder, AdkEncoder])
def test_a_small_change_of_a_wide_state_costs_what_it_is(
    make: Callable[[], AgnoEncoder | AdkEncoder],
) -> None:
    wide = {f"{i}": i for i in range(50_000)}
    encoder = make()

    encoder.feed(canonical("state.snapshot", {"snapshot": wide}))
    with no_longer_than(5):
        for i in range(10_000):
            for change in ({"op": "add", "path": "/new", "value": i}, {"op": "remove"}):
                encoder.feed(canonical("state.delta", {"delta": [{"path": "/new", **change}]}))
    assert wide == {f"{i}": i for i in range(50_000)}


TOKENS: dict[str, Callable[[str], bytes]] = {
    "agno": lambda token: agno("RunContent", content=token),
    "adk": lambda token: adk({"text": token}, partial=True),
    "agui": lambda token: agui("TEXT_MESSAGE_CONTENT", messageId="m", delta=token),
}


@pytest.mark.parametrize("protocol", sorted(TOKENS))
def test_an_answer_in_short_tokens_is_held_as_what_it_is(protocol: str) -> None:
    n, make = 3000, TOKENS[protocol]
    fold = run_of(protocol)
    fold.feed(_raw("bytes", make("begin"), 2))
    tracemalloc.start()
    try:
        for sequence in range(3, 33):
            body = b"".join(make(f"{i:04}") for i in range(n // 30))
            fold.feed(_raw("bytes", body, sequence))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 4 * 4 * n


LONG = "n" * 100_000
BIG_NAMES: dict[str, tuple[list[bytes], Callable[[int], bytes]]] = {
    "agno": (
        [
            agno("RunStarted", agent_name=LONG),
            agno("StepStarted", run_id=None, workflow_id=LONG, step_id="s", step_name=LONG),
            agno("RunStarted", run_id="m", parent_run_id="r", agent_id=LONG, step_id=LONG),
            agno("ToolCallStarted", tool=tool("c", tool_name=LONG)),
        ],
        lambda i: agno("RunContent", run_id="m" if i % 2 else None, content="x"),
    ),
    "adk": (
        [
            adk({"text": "x"}, id=LONG, partial=True, invocationId=LONG, branch="b"),
            adk({"functionCall": {"name": LONG, "id": LONG, "partialArgs": []}}, partial=True),
        ],
        lambda i: adk(
            {"text": "x"} if i % 2 else {"functionCall": {"partialArgs": [{"jsonPath": "$"}]}},
            id=None,
            invocationId=None,
            partial=True,
            branch="b" if i % 2 else None,
        ),
    ),
    "agui": (
        [
            agui("RUN_STARTED", runId=LONG, threadId=LONG),
            agui("STEP_STARTED", stepName=LONG),
            agui("SUBAGENT_STARTED", subagentRunId="s", name=LONG),
            agui("STEP_STARTED", stepName=LONG, subagentRunId="s"),
            agui("TOOL_CALL_START", toolCallId="c", toolCallName=LONG, subagentRunId="s"),
        ],
        lambda i: agui("TOOL_CALL_ARGS", toolCallId="c", delta="x", subagentRunId="s"),
    ),
}


@pytest.mark.parametrize("protocol", sorted(BIG_NAMES))
def test_a_long_name_is_not_said_again_with_every_word(protocol: str) -> None:
    fold = run_of(protocol)
    long, make_small = BIG_NAMES[protocol]
    fold.feed(_raw("bytes", b"".join(long), 2))
    told = fold.feed(_raw("bytes", b"".join(map(make_small, range(20))), 3))
    assert len(told) >= 20
    assert max(len(placed.body) for placed in told) < 16 * 1024


def test_a_chain_of_ids_that_are_taken_is_no_recursion() -> None:
    taken = [f"m{'#2' * links}" for links in range(2000)]
    fold = run_of("agui")
    body = b"".join(
        agui(type, messageId=id, delta=f"{at}")
        for at, id in enumerate((*taken, "m", "m"))
        for type in ("TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END")
    )
    told = fold.feed(_raw("bytes", body, 2))
    assert fold.error is None
    started = [e.data["message_id"] for e in told if e.type == "llm.message_started"]
    assert len(set(started)) == len(started) == 2002


def test_every_run_inside_a_run_has_an_id_of_its_own_however_often_it_begins() -> None:
    fold = run_of("agno")
    told = fold.feed(_raw("bytes", b"".join(AGNO["an inner run again and again"](10)), 2))
    begun = [e.data["subrun_id"] for e in told if e.type == "dispatch.worker"]
    assert begun == ["m", *(f"m#{attempt}" for attempt in range(2, 11))]


def test_an_error_frame_of_blanks_is_read_at_once() -> None:
    fold = run_of("adk")
    body = b'data: {"error": "' + b" " * 500_000 + b"x\n\n"
    with no_longer_than(5):
        *_, end = fold.feed(_raw("bytes", body, 2))
    assert end.type == "lifecycle.failed"


@pytest.mark.parametrize(
    "line", in_short([b"data: xx\n", b"data:\n", b"x", b": x\r"], [b"data: xx\n"]), ids=repr
)
def test_a_large_frame_in_small_pieces_is_held_as_what_it_is(line: bytes) -> None:
    body = b"data: " + line * (400_000 // len(line))
    parser = Parser(1 << 20)
    tracemalloc.start()
    try:
        for at in range(0, len(body), 3):
            parser.feed(body[at : at + 3])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.5 * len(body)


def test_the_parser_reads_every_byte_a_few_times_whatever_the_chunks() -> None:
    def work_for(n: int) -> int:
        parser = Parser()
        body = b"data: " + b"x" * n + b"\ndata: y" * n + b"\n\n"
        pieces = [body[at : at + 2] for at in range(0, len(body), 2)]
        return bytecodes(lambda: [parser.feed(piece) for piece in pieces])

    assert work_for(2000) < GROWTH * work_for(1000)


def test_every_decoder_is_measured() -> None:
    assert BY_PROTOCOL.keys() == PROTOCOLS
