"""Adds up what runs use of their budgets, and acts where a share of a limit is used."""
