"""The chi-square test: the p-value of observed counts against expected counts."""

import numpy as np
import torch
from numpy.typing import ArrayLike


def chi_square_p(counts: ArrayLike, expected: ArrayLike) -> float:
    """Return the p-value of observed counts [N] against expected counts [N].

    Cells with an expected count below 5 are joined into one. A count in a cell with expected count 0 gives 0.
    """
    observed, expected_counts = np.asarray(counts, float), np.asarray(expected, float)
    assert abs(observed.sum() - expected_counts.sum()) < 1e-6 * expected_counts.sum(), (
        "both must sum to the same number of draws"
    )
    if observed[expected_counts == 0].any():
        return 0.0
    small = expected_counts < 5
    if small.any():
        observed = np.append(observed[~small], observed[small].sum())
        expected_counts = np.append(expected_counts[~small], expected_counts[small].sum())
        if expected_counts[-1] < 5 and len(expected_counts) > 1:
            least = int(expected_counts[:-1].argmin())
            observed[least], expected_counts[least] = (
                observed[least] + observed[-1],
                expected_counts[least] + expected_counts[-1],
            )
            observed, expected_counts = observed[:-1], expected_counts[:-1]
    nonzero = expected_counts > 0
    observed, expected_counts = observed[nonzero], expected_counts[nonzero]
    if len(observed) < 2:
        return 1.0
    statistic = float(((observed - expected_counts) ** 2 / expected_counts).sum())
    half = torch.tensor([(len(observed) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
