"""Google ADK, versions 1.16 to 2.13: the events of `POST /run_sse`."""
