"""The requests of `penstock workflow`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from penstock_cli.terminal.api import Api, CallFailed

ROOT = "/v1/workflows"
Json = dict[str, Any]


class WorkflowsApi:
    """The routes below /v1/workflows."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def workflows(self, limit: int) -> tuple[list[Json], bool]:
        """Return up to `limit` workflows by their names, and whether there are more."""
        return self._api.pages(ROOT, "workflows", "after", limit, {}, most=500)

    def show(self, name: str, version: str | None) -> Json:
        """Return a version of a workflow."""
        more = ("versions", version) if version is not None else ()
        return self._api.call("GET", _path(name, *more))

    def has(self, name: str) -> bool:
        """Return whether a workflow of this name is known to be stored."""
        try:
            self._api.call("GET", _path(name), repeat=False)
        except CallFailed:
            return False
        return True

    def versions(self, name: str) -> list[Json]:
        """Return the versions of a workflow, the oldest first."""
        found: list[Json] = self._api.call("GET", _path(name, "versions"))["versions"]
        return found

    def put(self, name: str, version: str, document: bytes) -> Json:
        """Store a document in YAML or JSON as a version, and return the version.

        A repeat changes nothing.
        """
        return self._api.call("PUT", _path(name, "versions", version), yaml=document)

    def start(self, name: str, body: Mapping[str, Any]) -> Json:
        """Start a run and return its record.

        A retry sends the same idempotency key, so that no second run is started.
        """
        keyed = {**body, "idempotency_key": str(uuid.uuid4())}
        return self._api.call("POST", _path(name, "runs"), body=keyed)

    def retire(self, name: str) -> None:
        """Retire a workflow."""
        self._api.call("DELETE", _path(name))


def _path(*segments: str) -> str:
    return "/".join([ROOT, *(quote(each, safe="") for each in segments)])
