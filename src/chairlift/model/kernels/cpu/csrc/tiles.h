// Tiles of the products of linear.h: how many rows and vectors they have, and the loop over the steps of a panel.
#pragma once

#include "dot.h"
#include "kernels.h"
#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

// Vectors of a tile: a whole panel, or half of one if the registers are short and few.
constexpr int TILE_VECTORS = LANES >= 8 ? PANEL / LANES : HALF_PANEL / LANES;
constexpr int HALF_VECTORS = HALF_PANEL / LANES;

// Numbers of the kinds without groups.
template <WeightKind KIND>
using Numbers = std::conditional_t<
    is_quantized(KIND), Int8,
    std::conditional_t<KIND == BFLOAT16, Bfloat16, std::conditional_t<KIND == FLOAT32, float, Float16>>>;

// Kinds of which fewer variants are compiled: tiles have half of a panel, one after the other, and short vectors have
// small tiles.
constexpr bool has_few_variants(WeightKind kind) { return has_groups(kind) && code_bits(kind) < 8; }

// Whether a tile can have a whole panel.
template <WeightKind KIND>
constexpr bool HAS_WHOLE_PANELS = TILE_VECTORS > HALF_VECTORS && !has_few_variants(KIND);

// Whether so many rows are multiplied by whole panels. Kinds with groups have integer and float sums in registers, which
// AVX-512 has for 3 rows and a panel, or for 6 rows and half a panel. For 4 to 12 rows the latter is faster.
template <WeightKind KIND>
constexpr bool takes_whole_panels(int rows) {
    return HAS_WHOLE_PANELS<KIND> && (LANES < 16 || !has_groups(KIND) || rows <= 3 || rows > 12);
}

// Rows of a tile: as many as fit the registers beside the panel's vectors.
template <WeightKind KIND, int VECTORS>
constexpr int max_tile_rows() {
    if (LANES == 16) return has_groups(KIND) && VECTORS > HALF_VECTORS ? 3 : 6;
    if (LANES == 8) return is_quantized(KIND) && MOVES_SIGNS ? 4 : 6;
    if (NUM_REGISTERS == 32) return has_few_variants(KIND) ? 2 : 6;
    return 1;
}

// Vectors whose sums are in registers at a time. Where a tile of many rows has more, its vectors are divided into
// slices, and a row is loaded for each.
constexpr int slice_vectors(int rows, int vectors) {
    const int per_row = NUM_REGISTERS == 32 ? 24 / rows / 4 * 4 : rows == 1 ? 8 : rows == 2 ? 4 : 2;
    const int most = LANES == 16 || rows == 1 ? 8 : per_row < 8 ? per_row : 8;
    return vectors < most ? vectors : most;
}

// Whether the bfloat16 rows of a tile are widened once for all slices, range by range.
constexpr bool widens(int rows) { return WIDENS_ROWS && rows > 2; }

constexpr int LINE = 64;
constexpr int RANGE_TILES = 32, RANGE_GROUPS = 16;

// Steps of a panel that stay in the L1 or L2 cache while RANGE_TILES tiles of rows are multiplied by them.
template <WeightKind KIND>
constexpr int range_steps() {
    return has_groups(KIND) ? RANGE_GROUPS * code_bits(KIND) : 192;
}

// Whether so many tiles of at most so many rows are multiplied range by range.
template <WeightKind KIND>
constexpr bool has_ranges(int num_tiles, int rows) {
    if (KIND == FLOAT32 || KIND == FLOAT16) return num_tiles > 2 || (LANES < 16 && rows > 2);
    return has_groups(KIND) ? num_tiles > 2 : KIND == BFLOAT16 && widens(rows);
}

// Prefetches NUM_LINES lines of the panel ahead in every STEPS steps.
template <int NUM_LINES, int STEPS>
struct Prefetches {
    static constexpr int LINES = NUM_LINES, EVERY = STEPS;
    static constexpr size_t bytes(int steps) { return (size_t)((steps + EVERY - 1) / EVERY) * LINES * LINE; }
};

// Adds the products of some steps to the sums. Rows are bytes, or bfloat16 widened to float32.
template <typename Numbers, typename Prefetch, typename Row, int ROWS, int VECTORS>
CHAIRLIFT_INLINE void accumulate(
    typename Dot<Numbers>::Sum (&sums)[ROWS][VECTORS], const Row* rows, size_t stride, const uint8_t* panel, int steps,
    const uint8_t* ahead) {
    constexpr int ROW_STEP = sizeof(Row) == 1 ? Dot<Numbers>::ROW_BYTES : 2;
    for (int step = 0; step < steps; step++, panel += STEP_BYTES, rows += ROW_STEP) {
        if (step % Prefetch::EVERY == 0) {
#pragma GCC unroll 4
            for (int line = 0; line < Prefetch::LINES; line++) prefetch(ahead + line * LINE);
            ahead += Prefetch::LINES * LINE;
        }
#pragma GCC unroll 2
        for (int part = 0; part < Dot<Numbers>::PARTS; part++) {
            typename Dot<Numbers>::Column columns[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) columns[v] = load_column<Numbers>(panel, v, part);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const auto row = Dot<Numbers>::row(rows + r * stride, part);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) sums[r][v] = Dot<Numbers>::add(sums[r][v], columns[v], row);
            }
        }
    }
}

// Whether prefetches are spread over as many steps as there are. In float32 a panel takes as long to be read as to be
// multiplied by eight rows: where all its lines are prefetched in the first half of the steps, memory is idle in the
// second. Else too many lines at once do no harm.
template <WeightKind KIND>
constexpr bool SPREADS_PREFETCHES = LANES < 16 && KIND == FLOAT32;

// A range of the steps of a panel. Partial sums [rows][PANEL] are read from carried_sums unless the range is the first,
// and written there unless it is the last. Ranges are visited in order, so each sum has the same order of inputs as in
// one pass.
struct StepRange {
    int begin, end;
    float* carried_sums;
};

}  // namespace chairlift::CHAIRLIFT_SET
