"""No two test processes get the same port for their servers."""

from __future__ import annotations

import socket

import pytest

from support.real.ports import Ports

FIRST, LAST, BLOCK = 19_900, 19_940, 10


def test_no_port_is_given_twice_while_its_process_lives() -> None:
    one, other = (Ports(FIRST, LAST, BLOCK) for _ in range(2))
    try:
        given = [ports.take() for _ in range(BLOCK) for ports in (one, other)]
        assert len(set(given)) == len(given)
    finally:
        one.close()
        other.close()


def test_what_a_process_leaves_others_get_and_no_more_than_there_is() -> None:
    one, other = (Ports(FIRST, LAST, BLOCK) for _ in range(2))
    try:
        taken = {one.take() for _ in range(LAST - FIRST)}
        with pytest.raises(RuntimeError, match="no free ports"):
            other.take()
        with pytest.raises(RuntimeError, match="no free ports"):
            one.take()
        one.close()
        third = Ports(FIRST, LAST, BLOCK)
        try:
            assert third.take() in taken
        finally:
            third.close()
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_where_somebody_listens_is_no_free_port(host: str) -> None:
    ports = Ports(FIRST, FIRST + 2, 2)
    try:
        with socket.create_server((host, FIRST)):
            assert ports.take() == FIRST + 1
    finally:
        ports.close()
