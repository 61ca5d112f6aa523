"""Defines, checks and stores rules, and makes their secrets."""
