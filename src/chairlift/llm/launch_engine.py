"""launch_engine: starts the process of a later engine, whose import of torch takes a second."""

from chairlift.engine.ipc.engine_process import PrespawnedProcess

RUNNER = "chairlift.model.runner.torch_runner:build"
"""The runner of a model in one process (RunnerSpec)."""


def launch_engine() -> PrespawnedProcess | None:
    """Start a process that imports RUNNER's module. The caller closes it, also where prepare() got it.

    Returns None where the system has no process for it, which starting the engine then reports.
    """
    try:
        return PrespawnedProcess([RUNNER.partition(":")[0]])
    except OSError:
        return None
