"""Checks before a start that a workflow can be started with an input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from penstock.bus import Bus
from penstock.bus.records.workflows import LatestWorkflow, WorkflowRecord
from penstock.json_schema import (
    LOOP_STEPS,
    MAX_STEPS,
    TooMuchWork,
    misfits,
    shown_path,
    with_numbers,
)
from penstock.off_loop import OFF_LOOP
from penstock.turns import TenantUser
from penstock.web.problems import Problem

BUCKET: Final = "workflows"
MAX_INPUT_BYTES: Final = 512 * 1024
_LOOP_BYTES: Final = 32 * 1024  # of an input that is converted and checked on the event loop
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
VERSION: Final = re.compile(r"(?=.{1,32}\Z)[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")


def version_key(name: str, version: str) -> str:
    return f"v.{name}.{version}"


def latest_key(name: str) -> str:
    return f"latest.{name}"


class CheckedStart(NamedTuple):
    """A workflow that a start may begin, and the whole input of its run."""

    record: WorkflowRecord
    input: dict[str, Any]


async def check_start(
    bus: Bus,
    name: str,
    version: str | None,
    *,
    sent: Mapping[str, Any] | None,
    message: str = "",
    user: TenantUser,
) -> CheckedStart:
    """Check a start of a workflow; without a version, of its latest version.

    The start's command must name the version of this record. Otherwise another version could become
    the latest version before the command is handled. Raises Problem 404 if there is no such
    workflow or version, or the workflow is retired; 422 if the input does not fit the definition's
    schema. The problem lists each wrong field.
    """
    latest = await _latest_version(bus, name)  # raises Problem if the workflow is retired
    record = await find_workflow(bus, name, version or latest)
    return CheckedStart(record, await checked_input(record, sent, message, user=user))


async def find_workflow(bus: Bus, name: str, version: str | None) -> WorkflowRecord:
    """Return a version of a workflow. Without `version`, return the latest version. Raises Problem
    404 if there is no such workflow or version. A retired workflow has no latest version, but each
    of its versions can be found."""
    if version is None:
        version = await _latest_version(bus, name)
    found = None
    if NAME.fullmatch(name) is not None and VERSION.fullmatch(version) is not None:
        found = await bus.bucket(BUCKET).load(version_key(name, version), WorkflowRecord)
    if found is None:
        raise Problem(404, f"the workflow {name[:64]} has no version {version[:64]}")
    return found


async def _latest_version(bus: Bus, name: str) -> str:
    latest = None
    if NAME.fullmatch(name) is not None:
        latest = await bus.bucket(BUCKET).load(latest_key(name), LatestWorkflow)
    if latest is None:
        raise Problem(
            404, f"there is no workflow {name[:64]!r}; `penstock workflow list` lists them"
        )
    if latest.version is None:
        raise Problem(
            404,
            f"the workflow {name} is retired: it cannot be started before a new version is stored "
            f"(`penstock workflow show {name} --versions` lists the old ones)",
        )
    return latest.version


async def checked_input(
    record: WorkflowRecord, sent: Mapping[str, Any] | None, message: str, *, user: TenantUser
) -> dict[str, Any]:
    """Return the whole input of a start.

    A check of a large input or by a costly schema takes up to 0.3 s. It is made in the thread for
    long work, in the user's turn, since every other request would wait for it here. Raises Problem
    422 if the input does not fit the definition's schema, or is too large.
    """
    size_bytes = len(orjson.dumps(sent or {})) + len(message.encode())
    if size_bytes > MAX_INPUT_BYTES:
        raise Problem(422, f"input: must have at most {MAX_INPUT_BYTES} bytes")
    if size_bytes <= _LOOP_BYTES:
        try:
            return _checked(record, sent, message, LOOP_STEPS)
        except TooMuchWork:
            pass
    check = partial(_checked, record, sent, message, MAX_STEPS)
    try:
        return await OFF_LOOP.run(user, check)
    except TooMuchWork as error:
        raise Problem(422, f"input: {error}") from None


def _checked(
    record: WorkflowRecord, sent: Mapping[str, Any] | None, message: str, max_steps: int
) -> dict[str, Any]:
    checked = input_of(record.input_schema, sent, message)
    if found := misfits(record.input_schema, checked, max_steps):
        errors = [{"field": shown_path(each.path), "message": each.reason} for each in found]
        texts = "; ".join(map(str, found))
        raise Problem(
            422, f"the input does not fit the workflow {record.name}: {texts}", errors=errors
        )
    return checked


def input_of(
    schema: Mapping[str, Any], sent: Mapping[str, Any] | None, message: str
) -> dict[str, Any]:
    """Return the variable `input` of a workflow's expressions.

    The result has the fields of the start's input, and numbers have the types that the schema
    names. A message becomes the field `message`, unless the input already has this field or the
    schema forbids the field.
    """
    given = dict(sent or {})
    allows = "message" in schema.get("properties", {}) or schema.get("additionalProperties", True)
    if message and "message" not in given and allows is not False:
        given["message"] = message
    return dict(with_numbers(schema, given))
