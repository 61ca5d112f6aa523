"""Defines the data that services exchange besides events: commands, core requests, KV records.

pydantic checks each of these: a record that cannot be parsed is refused with the field's name.
"""
