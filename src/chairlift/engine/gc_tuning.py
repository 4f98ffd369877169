"""Python's garbage collector, told that an engine makes thousands of small things a step and no cycles."""

import gc

THRESHOLD = 50_000
"""Things made, less things gone, before the young ones are looked at: Python's 700 are two looks in a large step."""

GENERATIONS = (20, 20)


def tune_gc() -> None:
    """Look seldom, and never again at what is there now; for a process that is an engine's own.

    At 1,024 running sequences a step's own cost falls by about a sixth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(THRESHOLD, *GENERATIONS)
