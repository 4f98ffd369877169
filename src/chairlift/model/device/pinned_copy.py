"""copy_from_pinned: copies an array to a device without waiting for the device."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def copy_from_pinned(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return a copy of the values on the device; for CUDA through pinned memory, so that the host does not wait."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.clone()
