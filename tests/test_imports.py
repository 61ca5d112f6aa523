"""What a service imports only where a setting, a rule or a request needs it (decision 0385)."""

from __future__ import annotations

import subprocess
import sys

import pytest

AUTHENTICATION = ["jwt", "cryptography"]  # for a process with keys
EXPRESSIONS = ["cel_expr_python"]  # for rules, policies and budgets
PATTERNS = ["re2"]  # for redactions
REQUESTS = ["httpx", "rich"]  # httpx imports rich for its command


@pytest.mark.parametrize(
    ("service", "unused"),
    [
        ("normalizer", [*AUTHENTICATION, *EXPRESSIONS, *PATTERNS, *REQUESTS]),
        ("edge", [*AUTHENTICATION, *EXPRESSIONS, *PATTERNS]),
        ("automations", [*AUTHENTICATION, *EXPRESSIONS, *PATTERNS]),
    ],
)
def test_a_service_imports_no_package_before_it_needs_it(service: str, unused: list[str]) -> None:
    code = f"import sys, penstock_{service}.service; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(unused) & set(ran.stdout.split())
