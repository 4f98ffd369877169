"""Close at exit: an engine client that is still open is closed when Python exits, without an error."""

import subprocess
import sys
from pathlib import Path

FORGOTTEN = """
import atexit
from support_engine import RequestSink, make_request
from support_inline import start_client
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.runner.fake import FakeRunner
client = start_client(FakeRunner(FakeConfig(seconds_per_step=0.01)))
sink = RequestSink()
client.submit(make_request("a", 9, 500), sink)
atexit.register(lambda: print("open at exit:", not sink.finals))
"""

TESTS = Path(__file__).parents[2]


def test_an_open_client_is_closed_at_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGOTTEN], cwd=TESTS, check=False, capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "open at exit: True", "")
