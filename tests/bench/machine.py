"""Describe the machine, its load, and the versions of the measured software."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

from bench import load
from support.drive.repository import ROOT
from support.real.nats import binary


def described() -> dict[str, str]:
    """Return the facts that influence the figures, by name."""
    cores = os.cpu_count()
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    clients = "sseload.c" if load.program() else "crowd.py, since there is no C compiler"
    found = {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{cores} cores of {_processor()}, {gib:.0f} GiB, Linux {platform.release()}",
        "load of the last minute": f"{os.getloadavg()[0]:.1f}",
        "clients": clients,
        "Python": platform.python_version(),
        "Penstock": _said("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        "NATS": _said(binary(), "--version").removeprefix("nats-server: "),
        "uvicorn": version("uvicorn"),
        "nats-py": version("nats-py"),
    }
    if nginx := shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin"):
        found["nginx"] = _said(nginx, "-v").removeprefix("nginx version: ")
    return {name: value for name, value in found.items() if value}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return (done.stdout or done.stderr).strip().split("\n")[0] if done.returncode == 0 else ""
