"""A nats-server whose clock a test can set while it runs, built from the server's Go source.

libfaketime has no effect on a Go program, because Go reads the clock without the C library. This
build replaces Go's `time.Now` (`go build -overlay`) by a function that adds the seconds in a file.
The monotonic clock stays real, so timers are not affected.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from support.drive.repository import ROOT
from support.real.nats import binary

_CACHE = ROOT / ".penstock" / "cache" / "shifted-nats"
_NOW = "sec, nsec, mono := runtimeNow()\n"
_SHIFT = """package time

import (
	"sync/atomic"
	"syscall"
)

var shift atomic.Int64

func init() {
	if path, found := syscall.Getenv("SHIFT_FILE"); found {
		readShift(path)
		go func() {
			for {
				Sleep(20 * Millisecond)
				readShift(path)
			}
		}()
	}
}

func readShift(path string) {
	file, err := open(path)
	if err != nil {
		return
	}
	defer closefd(file)
	var text [24]byte
	size, err := read(file, text[:])
	if err != nil || size == 0 {
		return
	}
	digits, sign, value := text[:size], int64(1), int64(0)
	if digits[0] == '-' {
		digits, sign = digits[1:], -1
	}
	for _, digit := range digits {
		if digit < '0' || digit > '9' {
			break
		}
		value = value*10 + int64(digit-'0')
	}
	shift.Store(sign * value)
}
"""


class CannotBuild(Exception):
    """This machine cannot build the server; the text says why."""


class ShiftedServer:
    """The program, and the clock of the servers that `command` starts."""

    def __init__(self, file: Path) -> None:
        """Build the program. Raises CannotBuild."""
        self._program = _built()
        self._file = file
        self.set(0)

    def set(self, ahead_s: int) -> None:
        """Set the number of seconds that the clock is ahead from now on."""
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{ahead_s}")
        beside.rename(self._file)

    @property
    def command(self) -> list[str]:
        """The command to use in place of `nats-server`."""
        return ["env", f"SHIFT_FILE={self._file}", str(self._program)]


def _built() -> Path:
    version = re.search(r"v[\d.]+", _output(binary(), "--version"))
    assert version is not None
    program = _CACHE / f"nats-server-{version[0]}"
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise CannotBuild("Go is not installed")
    time_go = Path(_output("go", "env", "GOROOT").strip()) / "src" / "time" / "time.go"
    source = time_go.read_text()
    if source.count(_NOW) != 1:
        raise CannotBuild(f"{time_go} reads the clock in another way")
    # Several test processes may build at the same time, and none may run a half-written program.
    own = _CACHE / f"{os.getpid()}"
    own.mkdir(parents=True, exist_ok=True)
    now, shift = own / "time.go", own / "shift.go"
    now.write_text(source.replace(_NOW, f"{_NOW}\tsec += shift.Load()\n"))
    shift.write_text(_SHIFT)
    replaced = {str(time_go): str(now), str(time_go.with_name("shift.go")): str(shift)}
    overlay = own / "overlay.json"
    overlay.write_text(json.dumps({"Replace": replaced}))
    module = f"github.com/nats-io/nats-server/v2@{version[0]}"
    folder = json.loads(_output("go", "mod", "download", "-json", module))["Dir"]
    new = own / program.name
    _output("go", "build", "-p", "2", "-overlay", str(overlay), "-o", str(new), ".", cwd=folder)
    new.replace(program)
    shutil.rmtree(own)
    return program


def _output(*command: str, cwd: str | Path = "/") -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuild(f"{' '.join(command[:3])}: {done.stderr[-300:] or done.stdout[-300:]}")
    return done.stdout
