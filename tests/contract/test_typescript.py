"""The TypeScript declarations compile, and give readers the promised types."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.drive.contract import CONTRACT
from support.real import node

TSC = "node_modules/typescript/bin/tsc"
CONFIG = {
    "compilerOptions": {
        "strict": True,
        "target": "es2022",
        "module": "nodenext",
        "types": [],  # no types of Node or of browsers
        "noEmit": True,
    },
    "files": ["program.ts"],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make the folder of a TypeScript program with the declarations in it."""
    (tmp_path / "node_modules").symlink_to(node.packages("contract"))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tsconfig.json").write_text(json.dumps(CONFIG))
    shutil.copy(CONTRACT / "penstock.d.ts", tmp_path)
    return tmp_path


def compiled(project: Path, source: str) -> str:
    """Compile the program; return the compiler's output, which is empty if there are no errors."""
    (project / "program.ts").write_text(source)
    return node.run(TSC, cwd=project).stdout


def test_the_declarations_do_what_a_reader_needs(project: Path) -> None:
    source = (Path(__file__).parent / "reader.ts").read_text()
    assert compiled(project, source) == ""


def test_the_compiler_would_have_said_something(project: Path) -> None:
    said = compiled(
        project,
        'import type { LlmToolCall } from "./penstock.js";\n'
        "export const name = (event: LlmToolCall): number => event.data.tool;\n",
    )
    assert "Type 'string' is not assignable to type 'number'" in said
