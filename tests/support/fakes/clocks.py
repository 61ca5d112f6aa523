"""Clocks that are wrong: the server's, as a bus knows it, and those of whole processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.bus.connection.clock import Clock

_SHARED = Path("/dev/shm")
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib")


def server_steps(clock: Clock, seconds: float) -> None:
    """As if the server's clock had been set by so many seconds since it was last asked."""
    estimate = clock._estimate
    assert estimate is not None
    estimate.base_s -= seconds
    before = [replace(each, server_s=each.server_s - seconds) for each in estimate._kept]
    estimate._kept.clear()
    estimate._kept.extend(before)


def forget_the_dead() -> None:
    """Delete the shared memory that libfaketime leaves of each process that has ended."""
    for left in (*_SHARED.glob("faketime_shm_*"), *_SHARED.glob("sem.faketime_sem_*")):
        if not Path("/proc", left.name.rpartition("_")[2]).exists():
            left.unlink(missing_ok=True)


def libfaketime() -> Path | None:
    """The library that shifts the clock of a process; None where it is not installed."""
    for folder in _FOLDERS:
        for found in Path(folder).glob("**/faketime/libfaketime.so.1"):
            return found
    return None


class ShiftedClock:
    """The clock of processes that are started by `command`, all by the same amount.

    It may be set while they run. Their monotonic clocks stay real: timers go on as ever.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        self.set(0)

    def set(self, ahead_s: float) -> None:
        """By how much it is ahead from now on."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{ahead_s:+.3f}\n")
        beside.rename(self._file)

    @property
    def command(self) -> list[str]:
        """What stands before the command of a process. `time.sleep` fails in it."""
        variables = {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        return ["env", *(f"{name}={value}" for name, value in variables.items())]
