"""The rules of the layout hold, also for files that are added later.

import-linter checks the import rules (`make imports`, contracts in pyproject.toml).
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.contract import openapi
from penstock_cli.local.up import SERVICES
from penstock_edge.edge import Edge
from penstock_edge.service import SURFACES as ROWS
from penstock_edge.service import EdgeService
from penstock_edge.surfaces.surface import Surface
from support.drive.repository import ROOT, files, services, toml

LINTER = toml("pyproject.toml")["tool"]["importlinter"]
# The CLI composes the services and serves nothing of its own.
SERVERS = [name for name in services() if name != "cli"]
# The demo's agents run as scripts in other environments.
DEMO = ROOT / "services/cli/penstock_cli/demo"
SURFACES = ROOT / "services/edge/penstock_edge/surfaces"
PACKAGES = [
    ROOT / "shared/penstock",
    ROOT / "clients/conformance/penstock_conformance",
    ROOT / "clients/python/penstock_client",
    *(ROOT / f"services/{s}/penstock_{s}" for s in services()),
]


def contract(id: str) -> dict[str, Any]:
    [found] = [each for each in LINTER["contracts"] if each["id"] == id]
    return dict(found)


def imported(module: Path) -> Iterator[str]:
    """Yield the top-level packages that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(module.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            yield (node.module or "").split(".")[0]


def test_the_import_rules_know_every_package() -> None:
    names = sorted(package.name for package in PACKAGES)
    assert sorted(LINTER["root_packages"]) == names
    assert sorted(contract("nats")["source_modules"]) == names
    layers = " | ".join(contract("services")["layers"])
    assert sorted(layers.split(" | ")) == names


@pytest.mark.parametrize("id", ["shared", "bus", "dialects", "dialect", "surfaces"])
def test_a_new_module_without_a_place_in_the_layers_breaks_the_rules(id: str) -> None:
    assert contract(id)["exhaustive"] is True


def surfaces() -> list[str]:
    """Return the folders of the surfaces."""
    return sorted(each.parent.name for each in SURFACES.glob("*/__init__.py"))


def test_every_folder_of_surfaces_is_independent_of_the_others() -> None:
    assert contract("surfaces")["layers"][0] == " | ".join(surfaces())


def test_every_python_file_is_in_a_package_that_the_rules_cover_or_is_a_test() -> None:
    homes = [*PACKAGES, ROOT / "tests"]
    strays = [
        path.relative_to(ROOT)
        for path in files()
        if path.suffix == ".py" and not any(path.is_relative_to(home) for home in homes)
    ]
    assert strays == []


def test_every_folder_of_a_package_is_a_package() -> None:
    folders = {path.parent for path in files() if path.suffix == ".py"}
    missing = [
        folder.relative_to(ROOT)
        for folder in sorted(folders)
        if any(folder.is_relative_to(package) for package in PACKAGES)
        and not folder.is_relative_to(DEMO)
        and not (folder / "__init__.py").exists()
    ]
    assert missing == []


def test_the_contract_needs_pydantic_and_nothing_else() -> None:
    allowed = {*sys.stdlib_module_names, "pydantic", "penstock"}
    for module in (ROOT / "shared/penstock/events").rglob("*.py"):
        assert set(imported(module)) <= allowed, module.name
    assert toml("shared/pyproject.toml")["project"]["dependencies"] == ["pydantic>=2.11"]


def test_the_frames_need_the_standard_library_only() -> None:
    assert set(imported(ROOT / "shared/penstock/sse.py")) <= sys.stdlib_module_names


@pytest.mark.parametrize("name", services())
def test_a_service_is_a_distribution_of_one_package(name: str) -> None:
    project = toml(f"services/{name}/pyproject.toml")
    assert project["project"]["name"] == f"penstock-{name}"
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": [f"penstock_{name}"]}
    assert (ROOT / f"services/{name}/penstock_{name}/__init__.py").exists()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_says_that_it_is_typed(package: Path) -> None:
    assert (package / "py.typed").exists()


@pytest.mark.parametrize("name", SERVERS)
def test_every_service_has_the_same_skeleton(name: str) -> None:
    package = ROOT / f"services/{name}/penstock_{name}"
    for module in ("__init__.py", "__main__.py", "service.py", "settings.py"):
        assert (package / module).exists(), f"{name} has no {module}"
    readme = (ROOT / f"services/{name}/README.md").read_text()
    headings = re.findall(r"^## (.+)$", readme, re.MULTILINE)
    told = [h for h in headings if h in {"Consumes", "Publishes", "Owns", "Settings"}]
    assert told == ["Consumes", "Publishes", "Owns", "Settings"]


@pytest.mark.parametrize("name", services())
def test_a_service_declares_what_it_imports(name: str) -> None:
    """Members are installed with --no-deps, so no other check would find a missing requirement."""
    wheels = {
        "yaml": "pyyaml",
        "jwt": "pyjwt",
        "prometheus_client": "prometheus-client",
        "nats": "nats-py",
    }
    needed = {
        wheels.get(top, top.replace("_", "-"))
        for module in (ROOT / f"services/{name}/penstock_{name}").rglob("*.py")
        if not module.is_relative_to(DEMO)
        for top in imported(module)
        if top not in sys.stdlib_module_names and top != f"penstock_{name}"
    }
    shared = toml("shared/pyproject.toml")["project"]
    own = toml(f"services/{name}/pyproject.toml")["project"]["dependencies"]
    words = [*own, *shared["dependencies"], *chain(*shared["optional-dependencies"].values())]
    declared = {re.split(r"[\[><=]", word)[0].lower() for word in words}
    assert needed <= declared


# The patterns are written so that they do not match their own text.
FORBIDDEN = {
    "a package index's host": r"py[p]i\.org|pythonh[o]sted|registry\.npm[j]s|deb\.deb[i]an",
    "a path of one machine": r"(?<![A-Za-z0-9])/(?:w[o]rk|f[a]rm|ro[o]t|tmp/[w])/",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what].encode())
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in files()
        if (match := pattern.search(path.read_bytes()))
    ]
    assert found == []


def constants(module: Path) -> Iterator[str]:
    """Yield the string constants of a module, without its docstrings."""
    tree = ast.parse(module.read_bytes())
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and id(node) not in docstrings:
            yield value


def test_a_function_whose_name_is_a_statement_returns_a_value() -> None:
    """Nobody expects that a function such as `is_done` changes something."""
    # The arguments may have calls and types in brackets. Parsing all modules would take 2 s.
    changing = re.compile(
        r"def (_*(?:is|has|may|can|was|needs|wants|follows|contains)(?:_\w*)?)"
        r"\((?:[^()]|\([^()]*\))*\) -> None:"
    )
    assert changing.search("def is_done(self, now: float = min(1, 2)) -> None:")
    found = [
        f"{path}: {name}"
        for package in PACKAGES
        for path in package.rglob("*.py")
        for name in changing.findall(path.read_text("utf-8"))
    ]
    assert found == []


def test_only_these_modules_purge_messages() -> None:
    """A purge can make nats-server forget unacknowledged messages of a durable consumer (0245).

    None of these modules purges subjects that a durable consumer of ours reads. `continuity` purges
    messages of no run, which only a subscriber to all events gets.
    """
    purging = {
        str(path.relative_to(package.parent))
        for package in PACKAGES
        for path in package.rglob("*.py")
        if re.search(r"STREAM\.PURGE\.\{", path.read_text("utf-8"))
        and path.name != "permissions.py"
    }
    assert purging == {
        "penstock/bus/state/continuity.py",
        "penstock_approvals/lifecycle/deadlines.py",
        "penstock_workflows/effects/timers.py",
        "penstock_workflows/journal/journal.py",
    }


def test_shared_knows_no_path_of_a_service() -> None:
    """Each path is in its operation, beside the handler.

    Only the paths of the credentials' operations are in shared.
    """
    paths = {each.path for service in SERVICES for each in service.operations} - {"/"}
    # The part before the first parameter is enough: a module with `/v1/runs/` knows
    # `/v1/runs/{run_id}`.
    known = {path.partition("{")[0].rstrip("/") for path in paths}
    found = [
        f"{module.relative_to(ROOT)}: {word}"
        for module in (ROOT / "shared/penstock").rglob("*.py")
        if any(path in module.read_text("utf-8") for path in known)
        for text in constants(module)
        for word in re.split(r"[\s`'\"(),;]+", text)
        if any(word == path or word.startswith(f"{path}/") for path in known)
    ]
    assert found == []


def test_a_path_in_a_text_of_shared_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""About /v1/runs."""\nPATH = f"/v1/runs/{1}"\nX = ["GET /v1/runs"]\n')
    assert list(constants(module)) == ["/v1/runs/", "GET /v1/runs"]


def test_an_event_is_one_model_in_one_file(tmp_path: Path) -> None:
    """docs/add-an-event.md: a model with its note is enough for every published document."""
    package = tmp_path / "penstock"
    shutil.copytree(ROOT / "shared/penstock", package)
    with (package / "events/custom.py").open("a") as module:
        module.write("\n\n\n" + block("docs/add-an-event.md", "python"))
    out = tmp_path / "contract"
    command = [sys.executable, "-m", "penstock.contract", str(out)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    schema = json.loads((out / "schemas/custom.measured.json").read_text())
    assert schema["examples"][0]["data"] == {"name": "pressure", "value": 4.2}
    assert "### custom.measured\n" in (out / "catalogue.md").read_text()
    assert '"custom.measured": CustomMeasured;' in (out / "penstock.d.ts").read_text()
    channels = json.loads((out / "asyncapi.json").read_text())["channels"]
    assert channels["custom.measured"]["address"] == "custom.measured.{run_id}"


def test_a_surface_is_one_folder_and_one_row(tmp_path: Path) -> None:
    """docs/add-a-surface.md: only the edge's service imports a surface."""
    edge = SURFACES.parent
    for folder in surfaces():
        own = SURFACES / folder
        users = {
            module.relative_to(edge).as_posix()
            for module in edge.rglob("*.py")
            if not module.is_relative_to(own)
            and re.search(rf"penstock_edge\.surfaces\.{folder}\b", module.read_text())
        }
        assert users == {"service.py"}, folder
    namespace: dict[str, Any] = {}
    exec(block("docs/add-a-surface.md", "python"), namespace)
    surface: type[Surface] = namespace["EchoSurface"]
    [operation] = surface.operations()
    paths = openapi.document([*EdgeService.operations, operation])["paths"]
    assert paths["/v1/echo/{text}"]["get"]["security"][0] == {"bearer": ["read"]}
    [route] = surface(cast(Edge, None)).routes(lambda handler: handler)
    assert route.operation is operation


def test_every_surface_has_its_routes_and_a_row_in_the_service() -> None:
    rows = [surface.__module__.removeprefix("penstock_edge.surfaces.") for surface in ROWS]
    assert sorted(row.removesuffix(".routes") for row in rows) == surfaces()


@pytest.mark.parametrize("name", ["request", "answers"])
def test_a_surface_reads_bodies_and_answers_without_io(name: str) -> None:
    """The modules that read bodies and make answers are pure: no request, no bus, no clock."""
    modules = sorted(SURFACES.glob(f"*/{name}.py"))
    assert {module.parent.name for module in modules} >= {"adk", "agno", "agui"}
    for module in modules:
        named = set(re.findall(r"^\s*(?:from|import) ([\w.]+)", module.read_text(), re.MULTILINE))
        effects = ("asyncio", "httpx", "time", "starlette", "penstock_edge.edge")
        assert not [each for each in named if each.startswith(effects)], module
        assert "async def" not in module.read_text(), module


def test_a_client_dialect_is_one_module_and_one_row(tmp_path: Path) -> None:
    """docs/add-a-dialect.md: a row of the table is enough for the edge to stream a dialect."""
    package = tmp_path / "penstock"
    shutil.copytree(ROOT / "shared/penstock", package)
    (package / "dialects/counting.py").write_text(block("docs/add-a-dialect.md", "python"))
    table = package / "dialects/encoders.py"
    row = '    "counting": counting.DIALECT,\n}'
    text = table.read_text()
    assert text.count("\n}") == 1
    text = text.replace("\nCLIENT", "\nfrom penstock.dialects import counting\n\nCLIENT")
    table.write_text(text.replace("\n}", "\n" + row))
    script = """
import json, sys
from penstock.bus import Stored
from penstock_edge.views.dialects import DIALECTS, run_view

assert "counting" in DIALECTS
counting = run_view("r1", "counting")
encoding = counting.encoding()
for sequence, action in enumerate(("started", "completed"), 1):
    event = {"category": "lifecycle", "action": action}
    body = json.dumps({"event": event, "data": {}}).encode()
    sys.stdout.buffer.write(
        encoding.feed(Stored(f"lifecycle.{action}.r1", sequence, {}, body)).body
    )
sys.stdout.buffer.write(counting.notice("late", "too late"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
    )
    assert done.stdout == (
        b'event: counted\ndata: {"count":1,"type":"lifecycle.started"}\nid: 1-0\n\n'
        b'event: counted\ndata: {"count":2,"type":"lifecycle.completed"}\nid: 2-0\n\n'
        b": late: too late\n\n"
    )


@pytest.mark.parametrize("page", ["add-an-event", "add-a-surface", "add-a-dialect"])
def test_a_page_on_adding_something_names_files_that_there_are(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    named = re.findall(r"`((?:shared|services|tests|deploy|docs)/[\w./-]+)`", text)
    assert len(named) > 4
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert len(text.split()) < 700


def block(page: str, language: str) -> str:
    """Return the first code block of this language in a page."""
    found = re.search(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert found is not None
    return found[1]
