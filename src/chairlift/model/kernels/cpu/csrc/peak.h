// peak_rate: how many multiply-adds per second the products of this instruction set make without memory accesses.
#pragma once

#include <ctime>

#include "kernels.h"
#include "linear.h"

namespace chairlift::CHAIRLIFT_SET {

CHAIRLIFT_INLINE double thread_seconds() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// Keeps a compiler from computing once what does not change.
template <typename Vector>
CHAIRLIFT_INLINE void change(Vector& vector) {
    if constexpr (requires { vector.magnitudes; }) {
        change(vector.values), change(vector.magnitudes);
    } else {
#if defined(__x86_64__)
        asm volatile("" : "+v"(vector));
#else
        asm volatile("" : "+w"(vector));
#endif
    }
}

// The best of three loops over the steps of the largest tile without a panel and rows in memory.
template <WeightKind KIND>
static double peak_rate_of() {
    constexpr int MOST = HAS_WHOLE_PANELS<KIND> ? TILE_VECTORS : HALF_VECTORS;
    constexpr int ROWS = max_tile_rows<KIND, MOST>(), VECTORS = slice_vectors(ROWS, MOST);
    using Numbers = std::conditional_t<has_groups(KIND), GroupNumbers<KIND>, CHAIRLIFT_SET::Numbers<KIND>>;
    constexpr int INPUTS = is_quantized(KIND) ? 4 : inputs_per_step(KIND) / Dot<Numbers>::PARTS;  // of a product
    constexpr int STEPS = 50'000;
    const uint8_t zeros[STEP_BYTES] = {};
    double best = 0;
    for (int repeat = 0; repeat < 3; repeat++) {
        typename Dot<Numbers>::Sum sums[ROWS][VECTORS] = {};
        typename Dot<Numbers>::Column columns[VECTORS];
        for (int v = 0; v < VECTORS; v++) columns[v] = load_column<Numbers>(zeros, v, 0);
        auto row = Dot<Numbers>::row(zeros, 0);
        const double began = thread_seconds();
        for (int step = 0; step < STEPS; step++) {
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) change(columns[v]);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                change(row);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) sums[r][v] = Dot<Numbers>::add(sums[r][v], columns[v], row);
            }
        }
        const double seconds = thread_seconds() - began;
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) change(sums[r][v]);  // they are needed
        const double products = (double)STEPS * ROWS * VECTORS * LANES * INPUTS;
        best = products / seconds > best ? products / seconds : best;
    }
    return best;
}

static double peak_rate(WeightKind kind) {
    switch (kind) {
        case BFLOAT16: return peak_rate_of<BFLOAT16>();
        case INT8_CHANNEL: return peak_rate_of<INT8_CHANNEL>();
        case FLOAT32: return peak_rate_of<FLOAT32>();
        case FLOAT16: return peak_rate_of<FLOAT16>();
        case INT8_GROUP: case Q8_0: case IQ4_NL: case IQ4_XS: case MXFP4: return peak_rate_of<INT8_GROUP>();
        case INT4_GROUP: case Q4_0: case Q5_0: case Q5_1: case Q4_K: case Q5_K: case Q6_K: case INT6_GROUP:
            return peak_rate_of<INT4_GROUP>();
    }
    return 0.0;
}

}  // namespace chairlift::CHAIRLIFT_SET
