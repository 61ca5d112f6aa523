"""Agno AgentOS: agents, teams and workflows, as 2.3 and 3.1 stream them.

Importing the folder loads nothing: take the decoder from `penstock.dialects.agno.decode`.
"""
