"""`penstock-conformance agent`: a scripted agent on a server of its framework."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

AGENTS: Final = Path(__file__).parent / "agents"
_HELP: Final = (
    "Start the scripted agent, in an environment that has its framework: the first word of a "
    "message chooses what it does. `penstock-conformance --scripted` knows the words. AGENT_DATA "
    "may be a folder for its data."
)
# What the environment of each protocol's server must have.
_MODULES: Final[Mapping[str, Sequence[str]]] = {
    "agno": ("agno", "uvicorn"),
    "adk": ("google.adk",),
    "agui": ("pydantic_ai", "ag_ui", "uvicorn"),
}
# The arguments of Python that start it.
_COMMANDS: Final[Mapping[str, str]] = {
    "agno": "-m uvicorn agno_app:app --host {host} --port {port}",
    "adk": "-m google.adk.cli api_server --host {host} --port {port} "
    "--session_service_uri sqlite:///{data}/adk.sqlite --artifact_service_uri memory:// "
    "{agents}/adk",
    "agui": "-m uvicorn pydantic_ai_app:app --host {host} --port {port}",
}
# Fails unless Python finds all modules, which it does not load.
_IMPORTABLE: Final = """
import sys
from importlib.util import find_spec
try:
    sys.exit(None in map(find_spec, sys.argv[1:]))
except ModuleNotFoundError:  # of the package around a module
    sys.exit(1)
"""


def main(arguments: Sequence[str]) -> int:
    """Become the server; return only if this is not possible."""
    if list(arguments) == ["--folder"]:
        print(AGENTS)
        return 0
    parser = argparse.ArgumentParser(
        prog="penstock-conformance agent",
        description=_HELP,
        epilog="`penstock-conformance agent --folder` prints where the agents are, for a server "
        "that this command does not start.",
    )
    parser.add_argument("--protocol", required=True, choices=_COMMANDS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--python", default=sys.executable, help="the Python that has the framework (this one)"
    )
    asked = parser.parse_args(arguments)
    python = shutil.which(asked.python)
    if python is None:
        parser.error(f"there is no program {asked.python}")
    modules = _MODULES[asked.protocol]
    if subprocess.run([python, "-c", _IMPORTABLE, *modules], check=False).returncode:
        needed = " and ".join(modules)
        parser.error(f"the server needs {needed}, not in {python}: pass another --python")
    data = os.environ.get("AGENT_DATA") or tempfile.mkdtemp()
    names = {"agents": AGENTS, "data": data, "host": asked.host, "port": asked.port}
    words = [each.format_map(names) for each in _COMMANDS[asked.protocol].split()]
    path = os.pathsep.join([str(AGENTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "AGENT_DATA": data, "PYTHONPATH": path}
    os.execve(python, [python, *words], environment)
