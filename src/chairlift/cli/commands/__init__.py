"""Commands: one module for each command of the command line."""
