"""run_server(): a server process on a free port of the loopback interface: the demo model, or scripted replies."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from chairlift.bench.offline.subprocess_run import environ_with
from server_process.server_process import ServerProcess

SCRIPTED_CONTEXT_TOKENS = 262_144
"""Context of the scripted model, whose tokens are bytes: agents send 80,000 in their first request."""

TESTS = Path(__file__).parents[2] / "tests"


def demo_command(model_names: Sequence[str]) -> list[str]:
    """Return the command that serves the demo model under several names."""
    options = [word for name in model_names for word in ("--served-model-name", name)]
    return [sys.executable, "-m", "chairlift", "serve", "--port", "0", "--dtype", "float32", *options]


def scripted_command() -> list[str]:
    """Return the command that serves the scripted replies of tests/support_scripted_model.py."""
    fake = {"max_model_len": SCRIPTED_CONTEXT_TOKENS, "num_blocks": SCRIPTED_CONTEXT_TOKENS // 4}
    return [sys.executable, str(TESTS / "support_scripted_model.py"), json.dumps({"fake": fake})]


def router_command(*urls: str) -> list[str]:
    """Return the command that routes to the servers."""
    replicas = [word for url in urls for word in ("--replica", url)]
    return [sys.executable, "-m", "chairlift", "router", "--port", "0", *replicas]


@contextmanager
def run_server(command: Sequence[str], log: Path) -> Iterator[str]:
    """Run a server and yield its URL; its processes import the modules of tests/.

    The server's log is written to a file. Raises RuntimeError if the server does not become ready.
    """
    with ServerProcess(command, log, environ=environ_with(TESTS)) as server:
        yield server.url
