"""The client of the HTTP API.

It sends requests, follows streams, and writes the output for a terminal.
"""
