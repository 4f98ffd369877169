"""The roof: the command line, where processes are put together."""
