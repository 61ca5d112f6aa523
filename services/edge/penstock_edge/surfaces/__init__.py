"""Surfaces: the HTTP interfaces of the edge, one folder for each contract."""
