"""The ADK app `vana`: a real LlmAgent with a scripted model."""

# Penstock's type checks run in an environment without ADK.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from adk_model import scripted_agent

root_agent = scripted_agent("vana")
