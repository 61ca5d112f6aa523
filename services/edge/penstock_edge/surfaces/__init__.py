"""Surfaces are the edge's HTTP interfaces: one folder for each contract."""
