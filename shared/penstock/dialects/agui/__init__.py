"""AG-UI: the protocol between agents and the frontends that show them."""
