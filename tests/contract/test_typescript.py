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
        "skipDefaultLibCheck": True,
    },
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make the folder of a TypeScript program with the declarations in it."""
    (tmp_path / "node_modules").symlink_to(node.packages("contract"))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(CONTRACT / "penstock.d.ts", tmp_path)
    return tmp_path


def compiled(project: Path, sources: dict[str, str]) -> list[str]:
    """Compile these files, by their names; return the lines of the compiler, one per error."""
    config = {**CONFIG, "files": list(sources)}
    (project / "tsconfig.json").write_text(json.dumps(config))
    for name, source in sources.items():
        (project / name).write_text(source)
    return node.run(TSC, cwd=project).stdout.splitlines()


def test_the_declarations_do_what_a_reader_needs(project: Path) -> None:
    """An error in another program shows that the compiler reads the declarations.

    One compiler checks both programs, because it takes seconds to start.
    """
    wrong = (
        'import type { LlmToolCall } from "./penstock.js";\n'
        "export const name = (event: LlmToolCall): number => event.data.tool;\n"
    )
    right = (Path(__file__).parent / "reader.ts").read_text()
    found = compiled(project, {"reader.ts": right, "wrong.ts": wrong})
    assert [line for line in found if not line.startswith("wrong.ts")] == []
    [error] = found
    assert "Type 'string' is not assignable to type 'number'" in error
