"""Defines the error for a configuration that cannot be used."""


class ConfigurationError(Exception):
    """The error for a configuration that cannot be used.

    The text names the file or variable, and the field.
    """
