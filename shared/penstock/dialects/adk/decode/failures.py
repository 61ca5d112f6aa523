"""Reads the errors of an ADK stream.

The error frame of a failed run depends on ADK's version. Up to 1.22, the frame is `{"error":
"msg"}` without JSON escapes. Up to 2.3, the frame is the same object as valid JSON. From 2.6 on,
the frame also has `error_details`. Before the error frame, ADK 2.13 also sends an event with the
failure's `errorCode` and `errorMessage`. If a model stops early (MAX_TOKENS, SAFETY), an event has
an `errorCode` and no error frame follows. This module also reads the error events of
adk-streaming.md (`error_code`, `status_code`, `detail`).
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.dialects.adk.decode.frames import AdkEvent, ErrorDetails
from penstock.dialects.adk.decode.redaction import redacted, scrubbed
from penstock.dialects.base import Json, JsonObject, cut_off
from penstock.dialects.json import has_content, obj, string, verbatim

# The values of finishReason for an answer that ended too early, but whose text a client can use.
_PARTIAL = frozenset({"MAX_TOKENS"})

# The values of finishReason for a complete answer.
_REGULAR = frozenset({"STOP", "FINISH_REASON_UNSPECIFIED", "CONTINUATION"})

_ERROR_KEYS = frozenset({"error", "error_code", "status_code", "timestamp"})

_UNESCAPED = '{"error":'


@dataclass(slots=True)
class PendingError:
    """An `errorCode` that fails the run only if the next frame or the end of the stream says so."""

    code: str
    message: str
    step_id: str | None

    @property
    def is_exception(self) -> bool:
        """Tell the name of an exception (CamelCase) from a code of the model (capitals)."""
        return not self.code.isupper()

    def cut(self) -> JsonObject:
        return cut_short(self.code, self.message)

    def error(self) -> JsonObject:
        return {"code": self.code, "message": self.message}

    def warning(self) -> JsonObject:
        return {"message": self.message, "code": self.code.lower()}

    def failure(self) -> JsonObject:
        return failure(self.message, error_type=self.code, step=self.step_id)


def failure(error: str, **fields: object) -> JsonObject:
    present = {name: value for name, value in fields.items() if value is not None}
    return {"error": scrubbed(error), "code": "upstream_error", **present}


def error_of(data: JsonObject) -> JsonObject:
    return {"code": data.get("error_type", data["code"]), "message": data["error"]}


def stop_warning(event: AdkEvent) -> tuple[str, JsonObject] | None:
    """Return the finishReason of an early stop, and the data of its `system.warning`."""
    reason = string(event.get("finishReason"))
    if reason is None or reason in _REGULAR:
        return None
    message = string(event.get("errorMessage")) or f"the model stopped early: {reason}"
    return reason, {"message": scrubbed(message), "code": reason.lower()}


def cut_short(reason: str, message: str) -> JsonObject:
    """`reason` is the model's `finishReason` or `errorCode` (see `cut_off`)."""
    return cut_off(message, "partial_success" if reason in _PARTIAL else "failed")


def pending_error(
    event: AdkEvent, step_id: str | None, reported: tuple[str | None, ...]
) -> PendingError | None:
    code, message = event.get("errorCode"), event.get("errorMessage")
    if not has_content(code) and not has_content(message):
        return None
    named = verbatim(code) if has_content(code) else "ERROR"
    if named in reported:
        return None
    reported_text = verbatim(message) if has_content(message) else f"the upstream reported {named}"
    return PendingError(named, scrubbed(reported_text), step_id)


def is_failure(event: AdkEvent) -> bool:
    return has_content(event.get("error")) and "author" not in event


def read_failure(event: AdkEvent, before: PendingError | None) -> JsonObject:
    """`before` is the error that the event before the frame reported."""
    details: ErrorDetails = obj(event.get("error_details"))
    status_code = event.get("status_code")
    kinds = (details.get("error_type"), event.get("error_code"), before.code if before else None)
    rest = {key: value for key, value in event.items() if key not in _ERROR_KEYS}
    return failure(
        verbatim(event["error"]),
        error_type=next((kind for kind in kinds if string(kind)), None),
        step=before.step_id if before else None,
        status_code=status_code if type(status_code) is int else None,
        detail=_scrubbed(event.get("error_details") or event.get("detail") or rest or None),
    )


def _scrubbed(detail: Json) -> Json:
    if isinstance(detail, dict):
        detail = redacted(detail)
        return {key: scrubbed(v) if isinstance(v, str) else v for key, v in detail.items()}
    return scrubbed(detail) if isinstance(detail, str) else detail


def is_unescaped_failure(raw: str) -> bool:
    """Return whether a frame without valid JSON is an error frame of ADK 1.16 to 1.22."""
    return raw.lstrip().startswith('{"error"')


def read_unescaped(raw: str) -> JsonObject:
    """If the error message has a line break, the frame ends there, and the rest is lost."""
    # A regular expression would be very slow for many blanks in a row.
    message = raw.strip()
    if message.startswith(_UNESCAPED):
        message = message.removeprefix(_UNESCAPED).lstrip().removeprefix('"').removesuffix('"}')
    return failure(message, detail={"raw": scrubbed(raw)})
