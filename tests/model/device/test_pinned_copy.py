"""copy_from_pinned: what it returns is a copy."""

import numpy as np
import torch

from chairlift.model.device.pinned_copy import copy_from_pinned


def test_what_goes_to_the_device_is_a_copy() -> None:
    values = np.array([1, 2], np.int32)
    copied = copy_from_pinned(values, torch.device("cpu"))
    values[0] = 7
    assert copied.tolist() == [1, 2] and copied.dtype == torch.int32
