"""The requests of `penstock automations`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

from penstock_cli.terminal.api import Api

ROOT = "/v1/automations"
Json = dict[str, Any]


Repeat = Literal["replay", "retry-now"]  # make a delivery again; make its next attempt now


class AutomationsApi:
    """The routes below /v1/automations.

    If the connection is lost, a request is sent again only if the repetition has no further effect.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    def rules(self, limit: int) -> tuple[list[Json], bool]:
        """Return up to `limit` rules by their ids, and whether there are more."""
        return self._api.pages(ROOT, "automations", "after", limit, {})

    def rule(self, rule_id: str) -> Json:
        """Return a rule."""
        return self._api.call("GET", _path(rule_id))

    def make(self, rule: Mapping[str, Any]) -> Json:
        """Make a rule and return it, with the secret that was made for it."""
        return self._api.call("POST", ROOT, body=rule, repeat=False)

    def replace(self, rule_id: str, rule: Mapping[str, Any]) -> Json:
        """Replace a rule and return it."""
        return self._api.call("PUT", _path(rule_id), body=rule)

    def delete(self, rule_id: str) -> None:
        """Delete a rule."""
        self._api.call("DELETE", _path(rule_id), repeat=False)

    def pause(self, rule_id: str, reason: str) -> Json:
        """Pause a rule and return it."""
        return self._api.call("POST", _path(rule_id, "pause"), body={"reason": reason})

    def resume(self, rule_id: str) -> Json:
        """End the pause of a rule, and return the rule."""
        return self._api.call("POST", _path(rule_id, "resume"))

    def rotate(self, rule_id: str, of: str) -> Json:
        """Make a new secret, and return the rule with this secret.

        The current secret also stays valid.
        """
        return self._api.call("POST", _path(rule_id, "secrets"), body={"of": of}, repeat=False)

    def end_rotation(self, rule_id: str, of: str) -> Json:
        """Remove the previous secret of a rotation, and return the rule."""
        return self._api.call("DELETE", _path(rule_id, "secrets", "previous"), {"of": of})

    def test(self, rule_id: str, type_: str | None) -> Json:
        """Send a sample, and return the request and the answer."""
        body = {} if type_ is None else {"type": type_}
        return self._api.call("POST", _path(rule_id, "test"), body=body, repeat=False)

    def dry_run(self, rule_id: str, since: str, limit: int) -> Json:
        """Return what the rule would have done with past events."""
        return self._api.call(
            "POST", _path(rule_id, "dry-run"), body={"since": since, "limit": limit}
        )

    def deliveries(
        self, rule_id: str | None, limit: int, filters: Mapping[str, object]
    ) -> tuple[list[Json], bool]:
        """Return up to `limit` deliveries, the newest first, and whether there are more.

        Without `rule_id`, return the deliveries of all rules of the caller.
        """
        path = _path("deliveries") if rule_id is None else _path(rule_id, "deliveries")
        return self._api.pages(path, "deliveries", "after", limit, filters)

    def delivery(self, rule_id: str, delivery_id: str) -> Json:
        """Return a delivery with all its attempts."""
        return self._api.call("GET", _path(rule_id, "deliveries", delivery_id))

    def repeat(self, what: Repeat, rule_id: str, delivery_id: str) -> Json:
        """Replay or retry a delivery. A second call within a short time has no further effect."""
        path = _path(rule_id, "deliveries", delivery_id, what)
        return self._api.call("POST", path, repeat=False)

    def repeat_some(self, what: Repeat, rule_id: str | None, selection: Mapping[str, Any]) -> Json:
        """Replay or retry some of the selected deliveries.

        Return their number, and the cursor for the next call.
        """
        body = {name: value for name, value in selection.items() if value is not None}
        path = _path(what) if rule_id is None else _path(rule_id, what)
        return self._api.call("POST", path, body=body, repeat=False)

    def endpoints(self) -> list[Json]:
        """Return the endpoints whose circuit breakers are not closed."""
        found: list[Json] = self._api.call("GET", f"{ROOT}/endpoints")["endpoints"]
        return found


def _path(*parts: str) -> str:
    return "/".join([ROOT, *(quote(part, safe="") for part in parts)])
