"""The connector: the service that holds the HTTP connections to agent servers."""
