"""What the routes of a sign-in share with `oidc`, which only a process with a provider imports."""

from __future__ import annotations

from typing import Final, Literal

CALLBACK: Final = "/v1/oidc/callback"
FLOW_S: Final = 600.0  # seconds that a person has for a sign-in

# Why a sign-in has failed: the page has words for each.
Reason = Literal["denied", "not_begun", "not_accepted", "unavailable", "too_large"]


class SignInRefused(Exception):
    """A sign-in has failed. `place` is where the browser goes on; the text is for operators."""

    def __init__(self, reason: Reason, place: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.place = place
