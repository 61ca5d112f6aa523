"""What the command line's tests share."""

from __future__ import annotations

import os

import pytest

from support.upstreams import ADK, AGNO


@pytest.fixture
def real_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments that the other tests use."""
    for recipe in (AGNO, ADK):
        if not recipe.python.exists():
            reason = f"no environment for the real {recipe.name} server: run `make upstreams`"
            pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
        monkeypatch.setenv(f"PENSTOCK_DEMO_{recipe.name.upper()}_PYTHON", str(recipe.python))
