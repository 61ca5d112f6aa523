"""A NATS password in a file: what a service does if the file is bad, at its start and later."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.settings import ConfigurationError, Settings
from penstock.settings.service import nats_login


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot read the password"),
        (b"", "there is no password"),
        (b" \n", "there is no password"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_a_service_does_not_start_without_a_password(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    if content is not None:
        (tmp_path / "edge").write_bytes(content)
    with pytest.raises(ConfigurationError, match=why):
        nats_login(Settings(nats_passwords=tmp_path), "edge")


def test_the_former_password_is_used_while_the_file_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "edge"
    file.write_text("first\n")
    user, password = nats_login(Settings(nats_passwords=tmp_path), "edge")
    assert user == "edge"
    assert callable(password)
    for content in (b"", b"\n", b"\xff\xfe"):
        file.write_bytes(content)
        assert password() == "first"
    file.unlink()
    assert password() == "first"
    file.write_text("second\n")
    assert password() == "second"
