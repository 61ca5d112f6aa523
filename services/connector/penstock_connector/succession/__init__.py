"""Takes over or ends the legs of a connector that has died or that stops."""
