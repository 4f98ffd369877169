"""scale_bits: the weights of a whole vocabulary add up to less than an int64 holds."""

from chairlift.model.kernels.sampling_parameter_columns import scale_bits
from support_shares import for_each


@for_each("vocab_size", [1, 2, 50, 3000, 151_936, 262_144])
def test_the_sum_of_the_largest_weights_fits(vocab_size: int) -> None:
    assert vocab_size << scale_bits(vocab_size) < 2**62
    assert scale_bits(vocab_size) >= 43
