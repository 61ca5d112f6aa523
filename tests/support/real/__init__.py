"""Real servers, services, browsers and clients, each in a separate process."""
