"""Reads the YAML files of the operator, and stores the rules of a file."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, ValidationInfo, field_validator

from penstock.settings import Config, ConfigurationError
from penstock.web.auth.grants import DEFAULT, SCOPES
from penstock.yaml_lines import Place, expanded
from penstock_automations.rules.check import InvalidRule, missing_right, read_rule
from penstock_automations.rules.draft import Draft
from penstock_automations.rules.hidden import with_secrets
from penstock_automations.rules.model import Rule
from penstock_automations.rules.records import CompiledRule, Owner, RuleRecord
from penstock_automations.rules.store import RuleStore, VersionConflict

log = logging.getLogger(__name__)


class FileRule(Rule):
    """A rule of a file. Without an `owner`, the rule sees the runs of all users."""

    owner: str | None = Field(
        None,
        min_length=1,
        validate_default=True,
        description="The user whose runs the rule sees.",
    )

    @field_validator("owner")
    @classmethod
    def _may_act(cls, owner: str | None, info: ValidationInfo) -> str | None:
        action = info.data.get("action")
        if action is not None and (reason := missing_right(action, owner_of(owner))) is not None:
            raise ValueError(reason)
        return owner

    @property
    def plain(self) -> Rule:
        return Rule.model_validate(self.model_dump(exclude={"owner"}))


def read_list(path: Path, name: str) -> list[Any]:
    """Return the list that a YAML file has under its only key, with environment variables in place
    of `${NAME}`. Raises ConfigurationError."""
    unset: dict[Place, list[str]] = {}
    try:
        content = expanded(yaml.safe_load(path.read_text()) or {}, os.environ, unset)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"the {name} in {path} cannot be read: {error}") from None
    for [variable, *_] in unset.values():
        reason = f"the variable {variable} is not set"
        raise ConfigurationError(f"the {name} in {path} cannot be read: {reason}")
    listed = content.get(name) if isinstance(content, dict) else None
    if not isinstance(listed, list) or set(content) != {name}:
        raise ConfigurationError(f"{path} must have one key, `{name}`, with a list of {name}")
    return listed


def read_rules(
    path: Path, config: Config | None = None, known: Mapping[str, CompiledRule] | None = None
) -> list[FileRule]:
    """Return the rules of a file. Raises ConfigurationError, which names each mistake. Agents are
    only checked with a `config`.

    A rule that is stored among the `known` ones as the file has it was accepted before: its
    mistakes are logged. Otherwise a version that checks more, or an agent that is removed, would
    keep the service from starting, and so stop the rules of all users.
    """
    found: list[FileRule] = []
    mistakes: list[str] = []
    for number, value in enumerate(read_list(path, "rules"), 1):
        draft = Draft(config)
        try:
            found.append(read_rule(value, FileRule, draft))
        except InvalidRule as error:
            if (kept := _as_stored(value, known or {})) is None:
                mistakes.append(f"rule {number} is wrong: {error}")
                continue
            text = "%s: rule %d, %s, is wrong, and stays as it was accepted before: %s"
            log.error(text, path, number, kept.id, error)
            found.append(kept)
        for each in draft.warnings:
            log.warning("%s: rule %d: %s: %s", path, number, each["field"], each["reason"])
    ids = [rule.id for rule in found]
    if twice := {each for each in ids if ids.count(each) > 1}:
        mistakes.append(f"these ids are used twice: {', '.join(sorted(twice))}")
    if mistakes:
        raise ConfigurationError(f"{path}: {'; '.join(mistakes)}")
    return found


async def apply_file(path: Path, store: RuleStore, config: Config) -> None:
    """Store the rules of a file. Delete rules that came from an earlier file and are not in it.

    A rule that has not changed keeps its version. Rules that were made over HTTP stay.

    Raises:
        ConfigurationError: the file or the agent of a rule is wrong; no rule was changed.
        BusError: the rules could not be stored.
    """
    known = {rule.id: rule for rule in await store.all()}
    wanted = read_rules(path, config, known)
    for rule in wanted:
        owner, everybody = owner_of(rule.owner), rule.owner is None
        earlier = known.get(rule.id)
        if earlier is not None and earlier.record.source == "api":
            log.error("rule %s of %s is left out: a rule made over HTTP has its id", rule.id, path)
            continue
        if earlier is not None and _is_stored(rule, earlier.record):
            continue
        try:
            await store.apply(rule.plain, owner, all_users=everybody, source="file")
        except VersionConflict:
            log.info("rule %s is stored by another process at the same time", rule.id)
    for rule_id in known.keys() - {rule.id for rule in wanted}:
        if known[rule_id].record.source == "file":
            log.info("rule %s is deleted: %s does not have it any more", rule_id, path)
            await store.delete(rule_id)


def owner_of(user: str | None) -> Owner:
    """Return the owner of a rule: the named user with the default scopes, else the operator."""
    if user is None:
        return Owner(user_id="", scopes=sorted(SCOPES))
    return Owner(user_id=user, scopes=sorted(DEFAULT))


def _is_stored(wanted: FileRule, found: RuleRecord) -> bool:
    if not found.has_rights_of(owner_of(wanted.owner), all_users=wanted.owner is None):
        return False
    return with_secrets(wanted.plain, found.rule).model_dump() == found.rule.model_dump()


def _as_stored(value: Any, known: Mapping[str, CompiledRule]) -> FileRule | None:
    """Return the rule of the file if it is stored like this; None for any other rule."""
    try:
        rule = FileRule.model_validate(value)
    except ValidationError:
        return None
    stored = known.get(rule.id)
    if stored is None or stored.record.source != "file" or not _is_stored(rule, stored.record):
        return None
    return rule
