"""Agno AgentOS: agents, teams and workflows, as the versions 2.3 and 3.1 stream them."""
