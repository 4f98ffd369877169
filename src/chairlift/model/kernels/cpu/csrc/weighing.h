// Logits as weights of a draw: the largest of every block, and e**((x - peak) / temperature) in float64.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

constexpr int WIDE = LANES / 2;  // float64 of a vector

typedef double Doubles __attribute__((vector_size(WIDE * 8)));
typedef int64_t Longs __attribute__((vector_size(WIDE * 8)));
typedef float HalfFloats __attribute__((vector_size(WIDE * 4)));

// blocks[i] = the largest of the i-th DRAW_BLOCK logits, of `count` in all; none is NaN.
static void peaks(const float* logits, int count, float* blocks) {
    for (int begin = 0; begin < count; begin += DRAW_BLOCK) {
        const float* block = logits + begin;
        const int here = count - begin < DRAW_BLOCK ? count - begin : DRAW_BLOCK;
        float best = block[0];
        int i = 0;
        if (here >= LANES) {
            Floats most = load<Floats>(block);
            for (i = LANES; i + LANES <= here; i += LANES) most = larger(most, load<Floats>(block + i));
            best = largest(most);
        }
        for (; i < here; i++) best = block[i] > best ? block[i] : best;
        blocks[begin / DRAW_BLOCK] = best;
    }
}

// e**x for x <= 0, in float64, within 2 units of the last place; 0 below -708, also for -inf.
CHAIRLIFT_INLINE Doubles exponential(Doubles x) {
    const Doubles lowest = Doubles{} - 708.0, shift = Doubles{} + 6755399441055744.0;  // 1.5 * 2**52: see to_ints
    Doubles bounded = x > lowest ? x : lowest;
    Doubles shifted = bounded * 1.4426950408889634 + shift;
    Longs power = (Longs)shifted - (Longs)shift;
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

// weights[i] = e**((logits[i] - peak) / temperature), of up to DRAW_BLOCK; behind them may be written as far as that.
static void weigh(const float* logits, int count, double peak, double temperature, double* weights) {
    float last[WIDE];
    for (int i = 0; i < count; i += WIDE) {
        const float* from = logits + i;
        if (i + WIDE > count) {
            for (int j = 0; j < WIDE; j++) last[j] = i + j < count ? from[j] : (float)peak;
            from = last;
        }
        Doubles x = __builtin_convertvector(load<HalfFloats>(from), Doubles);
        store(weights + i, exponential((x - peak) / temperature));
    }
}

}  // namespace chairlift::CHAIRLIFT_SET
