"""Declares the commands with their arguments and options. Each group of commands has a module."""
