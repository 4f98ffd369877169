"""`chairlift serve`: launches the engine process, imports the server meanwhile, and serves a model."""

import argparse

from chairlift.llm.launch_engine import launch_engine


def run(arguments: argparse.Namespace) -> int:
    """Serve a model until SIGTERM or Ctrl-C; returns the exit code.

    Raises ConfigError and ModelError for invalid input.
    """
    launched = launch_engine()
    try:
        from chairlift.cli.serve_model import serve_model  # half a second, in which the engine process imports torch

        return serve_model(arguments, launched)
    finally:
        if launched is not None:
            launched.close()
