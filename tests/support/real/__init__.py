"""Real servers, services, browsers and clients, each a process of its own."""
