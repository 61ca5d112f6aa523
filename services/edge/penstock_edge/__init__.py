"""The edge: the service that lets clients start, follow and control runs over HTTP."""
