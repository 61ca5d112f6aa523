"""The folder of apps for `adk api_server`."""
