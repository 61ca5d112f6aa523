"""The errors of calls.

PenstockError
├── Unreachable      no Penstock answers at the URL
├── DeadlineReached  a run has not ended within the caller's time
└── ApiError         the service refused the request, with RFC 9457 problem details
    └── CursorGone   the events at a cursor no longer exist
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import httpx

# `refused`: nothing listens. `certificate`, `tls`: the TLS connection failed. `silent`: no answer.
# `url`: the URL is none. `foreign`: something else answers.
Reason = Literal["refused", "certificate", "tls", "silent", "url", "foreign"]
GONE: Final = 410
TAKEN_OVER: Final = (
    "another iteration over this run has begun and goes on from here; for a second reader, call "
    "follow(run_id) of the client"
)


class PenstockError(Exception):
    """A call failed; the text says what is wrong."""


class Unreachable(PenstockError):
    """No Penstock answers at the URL. `reason` says what is wrong in one word."""

    def __init__(self, text: str, reason: Reason) -> None:
        super().__init__(text)
        self.reason = reason


class DeadlineReached(PenstockError, TimeoutError):
    """A run has not ended within the caller's time. The run itself goes on, and its stream
    continues after `cursor`."""

    def __init__(self, deadline_s: float, cursor: str | None) -> None:
        super().__init__(f"the run has not ended within {deadline_s:g} s; it goes on")
        self.cursor = cursor


class ApiError(PenstockError):
    """The service refused the request.

    `status` is the HTTP status, `errors` are the invalid fields, each with `field` and `message`,
    and `retry_after_s` is the time after which the service wants to be asked again, if it said so.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        errors: Sequence[Mapping[str, Any]] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{detail} ({status})")
        self.status = status
        self.detail = detail
        self.errors = errors
        self.retry_after_s = retry_after_s


class CursorGone(ApiError):
    """The events at a cursor no longer exist, so the stream begins again without a cursor."""


def refusal(response: httpx.Response) -> ApiError:
    """Return the error for an answer, whose body must have been read."""
    errors: Sequence[Mapping[str, Any]] = ()
    try:
        problem = response.json()
        detail = str(problem["detail"])
        errors = problem.get("errors", ())
    except (ValueError, KeyError, TypeError):
        detail = response.text.strip()[:200] or response.reason_phrase
    kind = CursorGone if response.status_code == GONE else ApiError
    return kind(response.status_code, detail, errors, retry_after_s(response.headers))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of the header `Retry-After`; None without it, and for a date."""
    text = headers.get("retry-after", "")
    return float(text) if text.isdecimal() and len(text) < 6 else None


def foreign(url: str) -> Unreachable:
    """Return the error for an answer that Penstock does not give."""
    return Unreachable(f"something answers at {url}, but it is no Penstock", "foreign")


def unreachable(url: str, error: BaseException) -> Unreachable:
    """Return the error for a connection that failed."""
    if isinstance(error, httpx.UnsupportedProtocol):
        return Unreachable(f"{url} is no http:// or https:// address", "url")
    if isinstance(error, httpx.TimeoutException):
        return Unreachable(f"nothing answers at {url}", "refused")
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return Unreachable(f"nothing answers at {url}", "refused")
    if isinstance(cause, ssl.SSLCertVerificationError):
        text = f"the certificate of {url} is not trusted ({cause.verify_message})"
        return Unreachable(text, "certificate")
    reason = cause.reason or cause
    return Unreachable(f"no TLS connection to {url} ({reason}); does it serve http://?", "tls")
