"""The commands with their arguments and options, a module for each group."""
