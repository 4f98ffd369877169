"""The table of sampling parameters on a device, int64 [slots + 1, 8]: its columns, and the scale of weights.

column   0            1      2      3      4     5       6            7
         temperature  top_p  min_p  top_k  seed  choice  num_outputs  slot
         float64, by their bits     int64
"""

TEMPERATURE, TOP_P, MIN_P, TOP_K, SEED, CHOICE, NUM_OUTPUTS, SLOT = range(8)
NUM_COLUMNS = 8


def scale_bits(vocab_size: int) -> int:
    """Return the binary places of a weight, so that the sum over a vocabulary fits into int64."""
    return 62 - vocab_size.bit_length()
