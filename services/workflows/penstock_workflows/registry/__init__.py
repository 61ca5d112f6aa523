"""Stores the definitions of workflows in KV, and reads them from files."""
