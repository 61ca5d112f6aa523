"""Reads definitions from files, and stores them as new versions with the creator `file`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

from penstock.settings import Config, ConfigurationError
from penstock_workflows.definition import InvalidDefinition, Loaded, load
from penstock_workflows.definition.checks import taken_name, unknown_references
from penstock_workflows.registry.store import TooManyWorkflows, VersionConflict, WorkflowStore

log = logging.getLogger(__name__)

BY: Final = "file"
SUFFIXES: Final = (".yaml", ".yml", ".json")


def read_files(path: Path) -> dict[Path, Loaded]:
    """Return the definitions of a file, or of all files of a folder.

    Raises:
        ConfigurationError: a file cannot be read, or a definition is wrong; the text names the file
            and the lines.
    """
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        wanted = [each for each in files if each == path or each.suffix in SUFFIXES]
        contents = {each: each.read_bytes() for each in wanted}
    except OSError as error:
        text = f"the workflows in {path} cannot be read: {error.strerror}"
        raise ConfigurationError(text) from error
    found: dict[Path, Loaded] = {}
    names: dict[tuple[str, str], Path] = {}
    for each, content in contents.items():
        try:
            loaded = load(content)
        except InvalidDefinition as error:
            raise wrong_file(each, error) from None
        key = (loaded.workflow.name, loaded.workflow.version)
        if key in names:
            reason = f"{names[key]} and {each} have the same workflow {key[0]}, version {key[1]}"
            raise ConfigurationError(reason)
        names[key] = each
        found[each] = loaded
    return found


def wrong_file(path: Path, error: InvalidDefinition) -> ConfigurationError:
    """Return an error that lists the mistakes of a file, each with its line."""
    lines = []
    for each in error.problems:
        where = each.position
        place = f"{path}:{where.line}:{where.column}" if where is not None else str(path)
        lines.append(f"{place}: {each.field}: {each.reason}")
    return ConfigurationError("\n".join(lines))


async def apply_files(path: Path, store: WorkflowStore, config: Config) -> None:
    """Store the definitions of a file or folder. Versions that are already stored are not changed.

    Raises:
        ConfigurationError: a definition is wrong, names an agent or a workflow that does not exist,
            or is stored with other content under the same version.
        BusError: a definition could not be stored.
    """
    found = await asyncio.to_thread(read_files, path)
    agents = [agent.id for agent in config.agents]
    stored = {each.name: [each.latest.version or ""] for each in await store.workflows()}
    known: dict[str, Collection[str]] = {**stored}
    for loaded in found.values():
        name = loaded.workflow.name
        known[name] = [*known.get(name, ()), loaded.workflow.version]
    for each, loaded in found.items():
        try:
            loaded.refuse(
                [
                    *taken_name(loaded.workflow, config),
                    *unknown_references(loaded.workflow, agents, known),
                ]
            )
        except InvalidDefinition as error:
            raise wrong_file(each, error) from None
    for each, loaded in found.items():
        try:
            record, outcome = await store.put(loaded, BY)
        except (VersionConflict, TooManyWorkflows) as error:
            raise ConfigurationError(f"{each}: {error}") from None
        if outcome == "created":
            log.info("stored version %s of the workflow %s", record.version, record.name)
