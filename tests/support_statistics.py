"""Chi-square for tests: how likely counts at least this odd are, when the expectation is true."""

import numpy as np
import torch
from numpy.typing import ArrayLike


def chi_square_p(counts: ArrayLike, expected: ArrayLike) -> float:
    """Return the p-value of observed counts [N] against expected counts [N].

    Cells that expect fewer than five are joined into one; a count where nothing at all is expected gives 0.
    """
    seen, hoped = np.asarray(counts, float), np.asarray(expected, float)
    assert abs(seen.sum() - hoped.sum()) < 1e-6 * hoped.sum(), "both must sum to the same number of draws"
    if seen[hoped == 0].any():
        return 0.0
    small = hoped < 5
    if small.any():
        seen = np.append(seen[~small], seen[small].sum())
        hoped = np.append(hoped[~small], hoped[small].sum())
        if hoped[-1] < 5 and len(hoped) > 1:
            least = int(hoped[:-1].argmin())
            seen[least], hoped[least] = seen[least] + seen[-1], hoped[least] + hoped[-1]
            seen, hoped = seen[:-1], hoped[:-1]
    kept = hoped > 0
    seen, hoped = seen[kept], hoped[kept]
    if len(seen) < 2:
        return 1.0
    statistic = float(((seen - hoped) ** 2 / hoped).sum())
    half = torch.tensor([(len(seen) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
