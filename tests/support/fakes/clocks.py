"""Wrong clocks: the server's clock as a bus estimates it, and the clocks of whole processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from penstock.bus.connection.clock import Clock

_SHARED = Path("/dev/shm")
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib")


def server_steps(clock: Clock, seconds: float) -> None:
    """Change the bus's estimate as if the server's clock had been set by this many seconds."""
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
    """Return the library that shifts a process's clock; None if it is not installed."""
    for folder in _FOLDERS:
        for found in Path(folder).glob("**/faketime/libfaketime.so.1"):
            return found
    return None


class ShiftedClock:
    """The clock of the processes that start with `command`, which all have the same shift.

    The shift may be set while they run. Their monotonic clocks stay real, so timers are not
    affected.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        self.set(0)

    def set(self, ahead_s: float) -> None:
        """Set the number of seconds that the clock is ahead from now on."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{ahead_s:+.3f}\n")
        beside.rename(self._file)

    @property
    def command(self) -> list[str]:
        """The words to put before a process's command. `time.sleep` fails in such a process."""
        variables = {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        return ["env", *(f"{name}={value}" for name, value in variables.items())]
