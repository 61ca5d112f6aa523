"""Answers the questions of a fold: has a run's checker see texts, each once.

What the checker has found is stored in RAW, under a writer of its own, before the fold gets it. So
every normalizer that folds the run again gets the same, as long as RAW has the run's frames. The
automations service makes the request; here, only the run that asks waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final
from uuid import uuid4

import orjson
from pydantic import BaseModel, Field, ValidationError

from penstock import telemetry
from penstock.bus import (
    RETRY_S,
    Bus,
    BusError,
    BusUnavailable,
    FenceConflict,
    Msg,
    RawWriter,
    subjects,
)
from penstock.bus.read import direct
from penstock.bus.records.webhooks import CheckReply, CheckRequest
from penstock.redactions.scanner import Action
from penstock_normalizer.fold.checking import Finding, Findings, Question
from penstock_normalizer.fold.run_fold import RunFold
from penstock_normalizer.runs.backlog import read

log = logging.getLogger(__name__)

WRITER: Final = "checks"  # the writer of source frames with what checkers have found
# How much is in one request, as JSON: a call has at most 256 KiB. A longer text is not checked.
MAX_TEXTS: Final = 500
MAX_BYTES: Final = 200 * 1024
_MARGIN_S: Final = 0.5  # how much longer a request may take than the checker
# How often a request is made while there is no answer: the process that has it may be killed.
_ASKS: Final = 4
_UTF8: Final = ("utf-8", "surrogatepass")


class _Found(BaseModel):
    """One finding in a checker's answer: the whole text, unless it says where."""

    text: int = Field(ge=0)
    start: int = Field(0, ge=0)
    end: int | None = None
    kind: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")
    action: Action | None = None


class _Answer(BaseModel):
    """What a checker answers."""

    # Without a default: an empty or misspelt answer must not count as one that finds nothing.
    found: Annotated[list[_Found], Field(max_length=1000)]


class Checks:
    """What the checker of one run has found."""

    def __init__(self, bus: Bus, run_id: str) -> None:
        self._bus = bus
        self._run_id = run_id
        self._writer: RawWriter | None = None
        self._known: dict[str, Findings] = {}  # by the digest of the text

    async def answer(self, question: Question, fold: RunFold) -> None:
        """Set the question's findings; wait for the checker, and while the bus is away. Raises
        BusError."""
        asks = True
        while batch := await self._unknown(question.texts):
            found: Sequence[Findings] = [None] * len(batch)
            if asks and _size(batch[0]) <= MAX_BYTES:
                answered = await self._ask(batch, fold)
                # The rest of a question would wait as long.
                asks = answered is not None
                found = answered or found
            await self._store(dict(zip(map(_digest, batch), found, strict=True)), fold.leg)
        question.findings = [self._known[_digest(text)] for text in question.texts]

    async def _unknown(self, texts: Sequence[str]) -> list[str]:
        """Return the first texts whose findings are not known, as many as fit into a request."""
        if self._writer is None:
            await self._read()
        batch: list[str] = []
        size = 0
        for text in texts:
            if _digest(text) in self._known:
                continue
            size += _size(text)
            if batch and (size > MAX_BYTES or len(batch) == MAX_TEXTS):
                break
            batch.append(text)
        return batch

    async def _read(self) -> None:
        connection = f"{WRITER}/{uuid4()}"
        self._writer = await RawWriter.resume(self._bus, self._run_id, WRITER, connection)
        start = 1
        while found := await read(self._bus, self._run_id, start, direct.BATCH, WRITER):
            for stored in found:
                for digest, findings in orjson.loads(stored.payload).items():
                    self._known.setdefault(digest, findings)
            start = found[-1].sequence + 1

    async def _store(self, found: Mapping[str, Findings], leg: int) -> None:
        assert self._writer is not None
        try:
            await self._writer.write("checked", orjson.dumps(found), leg=max(leg, 1))
        except FenceConflict:
            self._writer = None  # another normalizer has asked, too, and its findings count
        else:
            self._known.update(found)

    async def _ask(self, texts: Sequence[str], fold: RunFold) -> list[Findings] | None:
        """Return what the checker finds; None if it does not say so in time. While it refuses, as
        when it or the automations service is restarted, it is asked again."""
        check = fold.facts["redactions"]["check"]
        body = {"run_id": self._run_id, "agent": fold.facts["agent"]}
        body["texts"] = [_sent(text) for text in texts]
        request = CheckRequest(
            url=check["url"],
            body=body,
            timeout_s=check["timeout_s"],
            secret=check.get("secret"),
            user_id=fold.facts.get("user_id", "anonymous"),
            tenant=fold.facts.get("tenant") or "",
        )
        reason, wait_s = "no answer in time", RETRY_S
        try:
            async with asyncio.timeout(request.timeout_s + _MARGIN_S):
                while True:
                    try:
                        return await self._asked(request, texts, check["action"])
                    except BusError as error:
                        reason = str(error)
                        await asyncio.sleep(RETRY_S)
                    except ValueError as error:
                        reason = str(error)
                        await asyncio.sleep(wait_s)
                        wait_s *= 2  # it may have too much to do
        except TimeoutError:
            if not self._bus.is_ready:
                raise BusUnavailable(f"run {self._run_id}: its checker cannot be asked") from None
            telemetry.CHECKS.labels("failed").inc()
            log.warning("run %s: its checker fails, %s: %s", self._run_id, check["url"], reason)
            return None

    async def _asked(
        self, request: CheckRequest, texts: Sequence[str], action: Action
    ) -> list[Findings]:
        """Return what the checker finds. Raises BusError, and ValueError without an answer of the
        checker's."""
        reply = await self._first_reply(request)
        if reply.error is not None:
            raise ValueError(reply.error)
        findings = findings_of(reply.answer, texts, action)
        telemetry.CHECKS.labels("checked").inc()
        return findings

    async def _first_reply(self, request: CheckRequest) -> CheckReply:
        """Make a request, and make it again while no reply comes. A process that has it already has
        the checker asked once. Raises BusError, if no request may still get a reply."""
        loop, timeout_s = asyncio.get_running_loop(), request.timeout_s + _MARGIN_S
        subject, payload = subjects.check(self._run_id), request.dump()
        asking: set[asyncio.Task[Msg]] = set()
        try:
            while True:
                asking.add(asyncio.create_task(self._bus.request(subject, payload, timeout_s)))
                again_at = loop.time() + request.timeout_s / _ASKS
                while (rest_s := again_at - loop.time()) > 0:
                    done, asking = await asyncio.wait(
                        asking, timeout=rest_s, return_when=asyncio.FIRST_COMPLETED
                    )
                    while done:
                        each = done.pop()
                        is_last = not (asking or done)
                        try:
                            reply = CheckReply.model_validate_json(each.result().data)
                        except BusError:
                            if is_last:
                                raise
                        else:
                            if is_last or reply.error is None:
                                return reply
        finally:
            for each in asking:
                each.cancel()


def findings_of(answer: Any, texts: Sequence[str], action: Action) -> list[Findings]:
    """Return what a checker has found in each of the texts. Raises ValueError if the answer has
    another form, or names what is not there."""
    try:
        found = _Answer.model_validate(answer).found
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"its answer has another form: {where}: {first['msg']}") from None
    by_text: list[list[Finding]] = [[] for _ in texts]
    for each in found:
        if each.text >= len(texts):
            raise ValueError(f"its answer names text {each.text}, and there are {len(texts)}")
        length = len(texts[each.text])
        end = length if each.end is None else each.end
        if not each.start < end <= length:
            raise ValueError(f"its answer names characters {each.start} to {end} of {length}")
        by_text[each.text].append((each.start, end, each.kind.lower(), each.action or action))
    return [_without_overlaps(each) for each in by_text]


def _without_overlaps(found: list[Finding]) -> Findings:
    """Return the findings in the order of the text. What blocks counts before all others; of those
    that overlap, the one that begins first, and the longest of these."""
    blocking = [each for each in found if each[3] == "block"]
    ordered = sorted(found, key=lambda each: (each[0], -each[1]))
    if blocking:
        first = min(blocking)
        return [each for each in _disjoint(ordered) if each[1] <= first[0]] + [first]
    return _disjoint(ordered)


def _disjoint(ordered: Sequence[Finding]) -> list[Finding]:
    kept: list[Finding] = []
    for each in ordered:
        if not kept or each[0] >= kept[-1][1]:
            kept.append(each)
    return kept


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(*_UTF8)).hexdigest()[:32]


def _size(text: str) -> int:
    """Return the bytes of a text in a request, where each quote and line break takes two."""
    return len(orjson.dumps(_sent(text)))


def _sent(text: str) -> str:
    """Return a text as a checker gets it. Half of a surrogate pair is no JSON; what takes its place
    is one character, too."""
    return text.encode("utf-8", "replace").decode()
