// Softmax for sampling: the largest logit of each block, and weights e**((logit - max_logit) / temperature) in float64.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

constexpr int F64_LANES = LANES / 2;  // float64 values per vector

typedef double Doubles __attribute__((vector_size(F64_LANES * 8)));
typedef int64_t Int64s __attribute__((vector_size(F64_LANES * 8)));
typedef float HalfFloats __attribute__((vector_size(F64_LANES * 4)));

// block_maxima[i] = the largest of the i-th LOGITS_BLOCK of `count` logits, none of which is NaN.
static void block_max(const float* logits, int count, float* block_maxima) {
    for (int begin = 0; begin < count; begin += LOGITS_BLOCK) {
        const float* block = logits + begin;
        const int block_count = count - begin < LOGITS_BLOCK ? count - begin : LOGITS_BLOCK;
        float block_largest = block[0];
        int i = 0;
        if (block_count >= LANES) {
            Floats max_values = load<Floats>(block);
            for (i = LANES; i + LANES <= block_count; i += LANES)
                max_values = maximum(max_values, load<Floats>(block + i));
            block_largest = reduce_max(max_values);
        }
        for (; i < block_count; i++) block_largest = block[i] > block_largest ? block[i] : block_largest;
        block_maxima[begin / LOGITS_BLOCK] = block_largest;
    }
}

// Returns e**x in float64 for x <= 0, with an error of at most 2 ulp; 0 for x < -708 and for -inf.
CHAIRLIFT_INLINE Doubles exponential(Doubles x) {
    const Doubles lowest = Doubles{} - 708.0, shift = Doubles{} + 6755399441055744.0;  // 1.5 * 2**52: see round_to_ints
    // Below, the exponent of the result would wrap around; the result is 0 in any case.
    Doubles bounded = x > lowest ? x : lowest;
    Doubles shifted = bounded * 1.4426950408889634 + shift;
    Int64s power = (Int64s)shifted - (Int64s)shift;
    Doubles whole = shifted - shift;
    Doubles rest = bounded - whole * 6.93147180369123816490e-01;  // ln 2 in two parts
    rest = rest - whole * 1.90821492927058770002e-10;
    Doubles series = Doubles{} + 1.0 / 6227020800.0;  // the terms up to rest**13: |rest| is at most ln 2 / 2
    series = series * rest + 1.0 / 479001600.0;
    series = series * rest + 1.0 / 39916800.0;
    series = series * rest + 1.0 / 3628800.0;
    series = series * rest + 1.0 / 362880.0;
    series = series * rest + 1.0 / 40320.0;
    series = series * rest + 1.0 / 5040.0;
    series = series * rest + 1.0 / 720.0;
    series = series * rest + 1.0 / 120.0;
    series = series * rest + 1.0 / 24.0;
    series = series * rest + 1.0 / 6.0;
    series = series * rest + 0.5;
    series = series * rest + 1.0;
    series = series * rest + 1.0;
    Doubles value = series * (Doubles)((power + 1023) << 52);
    return x >= lowest ? value : Doubles{};
}

// weights[i] = e**((logits[i] - max_logit) / temperature) for count <= LOGITS_BLOCK logits. May write weights up to
// index LOGITS_BLOCK.
static void exp_weights(const float* logits, int count, double max_logit, double temperature, double* weights) {
    float padded[F64_LANES];
    for (int i = 0; i < count; i += F64_LANES) {
        const float* from = logits + i;
        if (i + F64_LANES > count) {
            for (int j = 0; j < F64_LANES; j++) padded[j] = i + j < count ? from[j] : (float)max_logit;
            from = padded;
        }
        Doubles x = __builtin_convertvector(load<HalfFloats>(from), Doubles);
        store(weights + i, exponential((x - max_logit) / temperature));
    }
}

}  // namespace chairlift::CHAIRLIFT_SET
