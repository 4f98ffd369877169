"""unpacked: codes of less than 32 bits in int32 words, as several formats store them."""

import torch
from torch import Tensor

WORD_BITS = 32


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Return the codes in rows of words, each row a stream of codes from its lowest bit.

    Args:
        words: int32 [n, W], with any strides; for 3 bits W is a multiple of 3.
        bits: 2, 3, 4 or 8.

    Returns uint8 [n, W * 32 / bits].
    """
    data = words.contiguous().view(-1).view(torch.uint8).view(len(words), -1)  # the last axis may have another stride
    mask = 2**bits - 1
    if bits == 8:
        return data
    if bits == 3:
        first, second, third = data.view(len(data), -1, 3).int().unbind(-1)
        stream = first | second << 8 | third << 16  # three bytes hold eight codes
        return torch.stack([stream >> shift & mask for shift in range(0, 24, 3)], dim=-1).to(torch.uint8).flatten(1)
    return torch.stack([data >> shift & mask for shift in range(0, 8, bits)], dim=-1).flatten(1)
