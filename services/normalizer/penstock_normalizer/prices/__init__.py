"""Computes what a model call costs: from the operator's table, else from public prices."""
