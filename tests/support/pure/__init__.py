"""Pure stand-ins, which need neither a server nor a bus."""
