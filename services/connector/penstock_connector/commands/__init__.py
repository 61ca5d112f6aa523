"""Start, continue and cancel: the commands that the connector takes."""
