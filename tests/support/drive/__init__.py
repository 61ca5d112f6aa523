"""Helpers that drive a test: clients, runs, waits, checks, and tables of test cases."""
