"""Decodes and encodes the frames of Agno AgentOS 2.3 and 3.1: agents, teams and workflows."""
