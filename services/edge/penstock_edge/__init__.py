"""The edge: runs, served to clients over HTTP."""
