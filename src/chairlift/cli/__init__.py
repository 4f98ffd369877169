"""The command line, which composes the parts of each process."""
