"""threads, peak_memory: the threads and the memory that this process has used."""

import resource
import sys


def threads() -> int:
    """Return the number of threads that torch computes with in this process."""
    import torch

    return torch.get_num_threads()


def peak_memory() -> int:
    """Return the larger of this process's and its largest ended child's peak resident bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    own, children = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return unit * max(resource.getrusage(scope).ru_maxrss for scope in (own, children))
