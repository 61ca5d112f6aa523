"""The connector: the HTTP connections to agent servers."""
