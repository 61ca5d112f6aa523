"""An app whose invocations cannot be resumed, which is the default."""
