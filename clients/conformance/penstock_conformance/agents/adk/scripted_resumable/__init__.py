"""An app whose invocations can be resumed."""
