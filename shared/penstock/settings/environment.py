"""Reads settings from the environment. Errors name the environment variable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsError

from penstock.validation import reason_of

SettingsT = TypeVar("SettingsT", bound=BaseSettings)


class ConfigurationError(Exception):
    """The error for an unusable configuration; its text names the file or variable, and the
    field."""


class EnvironmentSettings(BaseSettings):
    """Settings that come only from the environment and from keyword arguments.

    pydantic-settings can also read `.env` files and folders of secrets. Penstock uses neither
    `.env` files nor such folders, and reads a service's settings in half the time without them.
    """

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings


def read_settings(settings_type: type[SettingsT]) -> SettingsT:
    """Return the settings that the environment contains. Raises ConfigurationError if a value is
    wrong. The text names the variable."""
    try:
        return settings_type()
    except (ValidationError, SettingsError) as error:
        lines = [f"  {line}" for line in explained(error, settings_type)]
        raise ConfigurationError("\n".join(["the environment:", *lines])) from error


def explained(
    error: ValidationError | SettingsError, settings_type: type[BaseSettings]
) -> list[str]:
    """Return one line, with the environment variable, for each problem of these settings."""
    if isinstance(error, SettingsError):
        return [str(error)]
    # A group of settings (such as AuthSettings) reads its own variables. So the error of a group
    # contains only the problems of this group.
    groups = {each.__name__: each for each in _settings_types(settings_type)}
    owner = groups.get(error.title, settings_type)
    return [_variable_of(owner, each["loc"]) + reason_of(each) for each in error.errors()]


def variable_name(settings_type: type[BaseSettings], field_name: str) -> str:
    alias = settings_type.model_fields[field_name].validation_alias
    if isinstance(alias, str):
        return alias
    return f"{settings_type.model_config.get('env_prefix', '')}{field_name.upper()}"


def _settings_types(settings_type: type[BaseSettings]) -> Iterable[type[BaseSettings]]:
    yield settings_type
    for field in settings_type.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseSettings):
            yield from _settings_types(field.annotation)


def _variable_of(settings_type: type[BaseSettings], place: tuple[int | str, ...]) -> str:
    """Return `PENSTOCK_<NAME>: ` for a problem of one variable, else an empty text. The message of
    a problem of several variables names these variables itself."""
    if not place:
        return ""
    name = str(place[0])
    field = settings_type.model_fields.get(name)
    if field is None:  # `name` is an alias, which is the complete name of the variable
        return f"{name}: "
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseSettings):
        return _variable_of(field.annotation, place[1:])
    return f"{variable_name(settings_type, name)}: "
