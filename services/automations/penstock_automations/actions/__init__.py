"""Carries out the actions of rules, one module for each kind of action."""
