"""Each fault of the table can be made in the code as it is now.

`make mutations` is not part of `make test`. Without this test, a fault would be out of place for as
long as nobody calls it.
"""

from __future__ import annotations

import pytest

from mutations.table import Mutation, mutations
from support.drive.repository import ROOT


@pytest.mark.parametrize("mutation", mutations(), ids=lambda each: each.what)
def test_the_code_that_a_fault_changes_and_its_tests_exist(mutation: Mutation) -> None:
    assert mutation.file(ROOT).is_file()
    assert mutation.missing_tests(ROOT) == []
