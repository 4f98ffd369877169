"""drawn_weight: a random Int4Weight."""

import torch

from chairlift.model.kernels.int4_linear import Int4Weight


def drawn_weight(outputs: int, inputs: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> Int4Weight:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, generator=generator)
    scales = torch.rand(outputs, inputs // 32, generator=generator) * 0.02
    minima = scales * (torch.rand(outputs, inputs // 32, generator=generator) * -15)
    return Int4Weight(codes, scales.to(dtype), minima.to(dtype))
