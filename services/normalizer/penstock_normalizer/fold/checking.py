"""Takes out of a run's texts what its checker finds in them, beside what patterns find. Pure.

The fold asks: it yields a `Question` with texts, and goes on when its caller has set the findings.
So the findings are an input of the fold as the frames are, and the caller must store them before it
sets them (docs/decisions/0392).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.redactions.kinds import Kind
from penstock.redactions.scanner import Action, Parts, Redactor, rewritten

# What the checker found in a text, in the order of the text and without overlaps: where it begins
# and ends, in characters, its kind, and what becomes of it.
Finding: TypeAlias = tuple[int, int, str, Action]
# None for a text that could not be checked.
Findings: TypeAlias = Sequence[Finding] | None
UNCHECKED: Final = "unchecked"  # the kind that an event names for a text that was not checked


@dataclass(slots=True)
class Question:
    """Texts that the checker must see before the fold goes on. The caller sets `findings`, one for
    each text."""

    texts: Sequence[str]
    findings: Sequence[Findings] = ()


@dataclass(slots=True)
class CheckedRedactor(Redactor):
    """Takes out what the patterns match, and of what they have left, what the checker finds.

    A text whose findings are not known is noted as missing. Its result is then worth nothing: the
    caller asks, and calls again.
    """

    fails_closed: bool = True
    _missing: dict[str, None] = field(default_factory=dict)
    _findings: dict[str, Findings] = field(default_factory=dict)

    def text_in_parts(self, text: str) -> Parts[str]:
        clean = yield from self.patterns_in_parts(text)
        if not clean.strip():
            return clean
        if clean not in self._findings:
            self._missing[clean] = None
            return clean
        return self._without(clean, self._findings[clean])

    def take_missing(self) -> list[str]:
        missing, self._missing = list(self._missing), {}
        return missing

    def learn(self, question: Question) -> None:
        self._findings.update(zip(question.texts, question.findings, strict=True))

    def forget(self) -> None:
        """Forget all findings. The caller remembers them, and is asked again: so the fold makes the
        same events whether it has gone on or was restored."""
        self._findings.clear()

    def _without(self, text: str, findings: Findings) -> str:
        if findings is None:
            self.found[UNCHECKED] = self.found.get(UNCHECKED, 0) + 1
            if not self.fails_closed:
                return text
            self.blocked = self.blocked or UNCHECKED
            return ""
        pieces: list[str] = []
        at = 0
        for begin, end, kind, action in findings:
            instead = self.replace(Kind(kind, ""), action, text[begin:end])
            pieces += (text[at:begin], instead)
            at = end
            if action == "block":
                return "".join(pieces)
        return "".join((*pieces, text[at:]))


@dataclass(slots=True)
class WholeText:
    """Holds a text back until its end, since the checker must see it whole."""

    redactor: Redactor
    is_json: bool
    _pieces: list[str] = field(default_factory=list)
    held: str = field(default="", init=False)  # checked texts are not kept
    is_in_match: bool = field(default=False, init=False)

    def feed(self, piece: str) -> str:
        self._pieces.append(piece)
        self.redactor.waiting += len(piece)
        return ""

    def flush(self) -> str:
        text = "".join(self._pieces)
        self.redactor.waiting = max(0, self.redactor.waiting - len(text))
        return whole_json(self.redactor, text) if self.is_json else self.redactor.text(text)


def whole_json(redactor: Redactor, text: str) -> str:
    """Return a text that is JSON with each text in it searched, so that the checker is asked the
    same as for the value; nothing of it if something in it blocks the run."""
    try:
        clean = rewritten(text, redactor.value)
    except ValueError:
        return redactor.text(text)
    return clean if redactor.blocked is None else ""
