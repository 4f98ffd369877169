"""Outside: the program that another engine's own Python runs; it needs nothing but that engine.

    PYTHON -I external_main.py ENGINE TASK.json RESULT.json

TASK has model, dtype, threads, settings, and two lists of requests, warm_up and requests, each a prompt of token ids
and how many tokens follow; all arrive at once, greedy, and the end of sequence is ignored. RESULT has the seconds that
the requests took, of each the moments at which tokens came and how many, and what the engine says of itself. ENGINE
names the module beside this one, `external_ENGINE.py`, whose `opened(task)` returns the engine. Nothing here imports
Chairlift.
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


def module_of(engine: str) -> Any:
    """Load external_ENGINE.py, which lies beside this file."""
    path = Path(__file__).with_name(f"external_{engine}.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(engine: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Warm the engine up and have it do the requests.

    `engine.run(requests)` returns for each request the moments (time.perf_counter()) at which tokens came, and how many
    came in all; `engine.about()` what it is; `engine.close()` ends it.
    """
    engine.run(task["warm_up"])
    began = time.perf_counter()
    seen = engine.run(task["requests"])
    seconds = time.perf_counter() - began
    about = engine.about()
    engine.close()
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return {
        "seconds": seconds,
        "rides": [{"stamps": [moment - began for moment in stamps], "tokens": count} for stamps, count in seen],
        "engine": about,
        "peak_memory_bytes": 1024 * max(resource.getrusage(each).ru_maxrss for each in who),
    }


def leave_with_parent() -> None:
    """End when standard input closes, because whoever started this is gone."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, name="leave-with-parent", daemon=True).start()


def main(words: list[str]) -> int:
    """Do what a task says."""
    name, task_file, result_file = words
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    result = measured(module_of(name).opened(task), task)
    unfinished = Path(result_file + ".unfinished")
    unfinished.write_text(json.dumps(result), encoding="utf-8")
    unfinished.replace(result_file)
    return 0


if __name__ == "__main__":
    leave_with_parent()
    sys.exit(main(sys.argv[1:]))
