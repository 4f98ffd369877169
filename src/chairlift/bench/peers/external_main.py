"""External main: the program that runs in another engine's own Python and needs only that engine.

    PYTHON -I external_main.py ENGINE TASK.json RESULT.json

TASK has model, dtype, threads, settings, and two lists of requests, warm_up and requests. A request is a prompt of
token ids and a number of output tokens; all arrive at once, sampling is greedy, and the end of sequence is ignored.
RESULT has the seconds of the whole run, the token times and number of tokens of each request, and the engine's
description. ENGINE names a module in this folder, `external_ENGINE.py`, whose `open_engine(task)` returns the engine.
Nothing here imports Chairlift.
"""

import importlib.util
import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any


def load_engine_module(engine: str) -> Any:
    """Load external_ENGINE.py from the folder of this file."""
    path = Path(__file__).with_name(f"external_{engine}.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure_engine(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Warm the engine up, run the requests and return the result.

    `engine.run(requests)` returns for each request the times (time.perf_counter()) at which tokens arrived and their
    total number. `engine.about()` returns its description. `engine.close()` shuts it down.
    """
    engine.run(task["warm_up"])
    started_at = time.perf_counter()
    results = engine.run(task["requests"])
    seconds = time.perf_counter() - started_at
    about = engine.about()
    engine.close()
    scopes = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds,
        "records": [
            {"stamps": [moment - started_at for moment in stamps], "tokens": count} for stamps, count in results
        ],
        "engine": about,
        "peak_memory_bytes": 1024 * max(resource.getrusage(each).ru_maxrss for each in scopes),
    }


def exit_with_parent() -> None:
    """End this process when standard input closes, because its parent has ended."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, name="leave-with-parent", daemon=True).start()


def main(arguments: list[str]) -> int:
    """Run a task; returns the exit code."""
    name, task_file, result_file = arguments
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    result = measure_engine(load_engine_module(name).open_engine(task), task)
    unfinished = Path(result_file + ".unfinished")
    unfinished.write_text(json.dumps(result), encoding="utf-8")
    unfinished.replace(result_file)
    return 0


if __name__ == "__main__":
    exit_with_parent()
    sys.exit(main(sys.argv[1:]))
