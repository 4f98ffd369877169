// Rows times a packed weight: tiles of a few rows by a panel, sums in registers from the first input to the last.
//
//                       64 outputs (or 32)
//     step k:          [  panel, 4 bytes each  ]
//     row 0  [4 bytes]  sums[0][0..]                 Each sum runs over the steps in order, whatever the tile's shape,
//     row 1  [4 bytes]  sums[1][0..]                 so a row's product has the same bits in every batch.
//     ...
//
// While a panel is multiplied, lines of the next one are fetched: memory has work for as long as the multipliers have.
#pragma once

#include <cmath>

#include "kernels.h"
#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

// Rows of a tile, by what fits the registers beside the panel's vectors.
constexpr int TILE_ROWS = LANES == 16 ? 6 : LANES == 8 ? 2 : 1;
constexpr int GROUP_TILE_ROWS = LANES == 16 ? 3 : 1;
// Vectors of a tile at most: a whole panel, or half of one where registers are short and few.
constexpr int TILE_VECTORS = LANES == 16 ? 4 : HALF_PANEL / LANES;
constexpr int HALF_VECTORS = HALF_PANEL / LANES;
constexpr int LINE = 64;
// Of int8 in groups: how many groups of a panel stay in the nearest cache while so many tiles of rows pass over them.
constexpr int RUN_GROUPS = 16, RUN_TILES = 32;

CHAIRLIFT_INLINE Floats dot(Floats sum, Ints column, Ints row) { return dot_pairs(sum, column, row); }
CHAIRLIFT_INLINE Ints dot(Ints sum, Ints column, Ints row) { return dot_quads(sum, column, row); }

// Adds the products of some steps to the sums: of bfloat16 where these are Floats, of int8 where they are Ints.
template <int LINES, typename Sum, int ROWS, int VECTORS>
CHAIRLIFT_INLINE void accumulate(
    Sum (&sums)[ROWS][VECTORS], const uint8_t* rows, size_t stride, const uint8_t* panel, int steps,
    const uint8_t* ahead) {
    for (int step = 0; step < steps; step++, panel += STEP_BYTES, rows += 4) {
        Ints columns[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            columns[v] = load<Ints>(panel + v * sizeof(Ints));
            if constexpr (__is_same(Sum, Ints)) hold(columns[v]);  // bfloat16's stay without being told
        }
#pragma GCC unroll 4
        for (int line = 0; line < LINES; line++) fetch(ahead + line * LINE);
        ahead += LINES * LINE;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            Ints row = all_of(rows + r * stride);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sums[r][v] = dot(sums[r][v], columns[v], row);
        }
    }
}

// A run of groups of a panel; where it is not the first, sums of rows are carried on, [rows][PANEL], and where it is not
// the last, they are left there. Of other kinds a run is the whole panel.
struct Run {
    int begin, end;
    float* carried;
};

// The products of rows [first, first + ROWS) with VECTORS vectors of a panel, at `column` of it.
template <WeightKind KIND, int ROWS, int VECTORS, int LINES>
CHAIRLIFT_INLINE void multiply(
    Floats (&sums)[ROWS][VECTORS], const LinearCall& call, int first, int panel, int column, const Run& run,
    const uint8_t* ahead) {
    const Weight& weight = *call.weight;
    const uint8_t* rows = call.rows.data + first * call.rows.stride;
    const uint8_t* data = weight.data + panel * weight.panel_bytes() + column * 4;
    if constexpr (KIND == BFLOAT16) {
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sums[r][v] = Floats{};
        accumulate<LINES>(sums, rows, call.rows.stride, data, weight.steps, ahead);
    } else if constexpr (KIND == INT8_CHANNEL) {
        Ints whole[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) whole[r][v] = all(call.rows.sums[first + r]);
        accumulate<LINES>(whole, rows, call.rows.stride, data, weight.steps, ahead);
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            Floats scale = load<Floats>(weight.scales + panel * PANEL + column + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) sums[r][v] = to_floats(whole[r][v]) * (scale * call.rows.scales[first + r]);
        }
    } else {
        const int groups = weight.groups(), steps = GROUP / 4;
        const float* row_scales = call.rows.scales + (size_t)first * groups;
        const int32_t* row_sums = call.rows.sums + (size_t)first * groups;
        const uint16_t* scales = weight.group_scales + (size_t)panel * groups * PANEL + column;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] = run.begin ? load<Floats>(run.carried + r * PANEL + v * LANES) : Floats{};
        rows += run.begin * GROUP, data += run.begin * steps * STEP_BYTES;
        for (int group = run.begin; group < run.end; group++) {
            Ints whole[ROWS][VECTORS];
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) whole[r][v] = all(row_sums[r * groups + group]);
            accumulate<LINES>(whole, rows, call.rows.stride, data, steps, ahead);
            rows += GROUP, data += steps * STEP_BYTES, ahead += steps * LINES * LINE;
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                Floats scale = widened(scales + group * PANEL + v * LANES);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++)
                    sums[r][v] = fma(to_floats(whole[r][v]), scale * row_scales[r * groups + group], sums[r][v]);
            }
        }
    }
}

CHAIRLIFT_INLINE Floats activated(Floats x, Activation activation) {
    if (activation == SILU) return x / (1.0f + exponential(x < -88.0f ? all(88.0f) : -x));
    if (activation == GELU_TANH) {
        Floats inner = 0.7978845608f * fma(x * x * x, all(0.044715f), x);
        return 0.5f * x * (1.0f + hyperbolic_tangent(inner));
    }
    Floats value;
    for (int i = 0; i < LANES; i++) value[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.7071067812f));
    return value;
}

// Takes one more run of `width` logits into the best of a row.
static void improve(Best& best, const float* logits, int width, int column, int outputs) {
    Floats peak = load<Floats>(logits), nothing = peak * 0.0f;
    for (int i = LANES; i < width; i += LANES) {
        Floats more = load<Floats>(logits + i);
        peak = larger(peak, more), nothing += more * 0.0f;
    }
    const float most = largest(peak);
    const bool is_plain = sum(nothing) == 0.0f && column + width <= outputs;
    if (is_plain && !(most > best.value || (most == best.value && column < best.id))) return;
    for (int i = 0; i < width && column + i < outputs; i++) {
        const Best other = {logits[i], column + i};
        if (best.is_beaten_by(other)) best = other;
    }
}

// Takes off what a row's bits do not allow of a run of logits, and the rest into the best of it.
static void improve_among(
    Best& best, const uint32_t* allowed, int words, float* logits, int width, int column, int outputs, bool is_kept) {
    const Floats nothing = all(-INFINITY);
    for (int half = 0; half < width; half += HALF_PANEL, column += HALF_PANEL, logits += HALF_PANEL) {
        const int place = column / HALF_PANEL;
        const uint32_t bits = place < words ? allowed[place] : 0;
        if (!bits && !is_kept) continue;
        Floats peak = nothing;
        for (int i = 0; i < HALF_PANEL; i += LANES) {
            const Floats left = bits ? where(bits >> i, load<Floats>(logits + i), nothing) : nothing;
            peak = larger(peak, left);
            store(logits + i, left);
        }
        const float most = largest(peak);
        if (!(most > best.value || (most == best.value && column < best.id))) continue;
        for (int i = 0; i < HALF_PANEL && column + i < outputs; i++) {
            const Best other = {logits[i], column + i};
            if ((bits >> i & 1) && best.is_beaten_by(other)) best = other;
        }
    }
}

// Gives a run of one row's logits to the best of it, and to where they are kept.
static void judge(const LinearCall& call, float* logits, int width, int row, int column, Best* best) {
    const HeadRow& wanted = call.head[row];
    improve(best[row], logits, width, column, call.weight->outputs);
    if (wanted.allowed)
        improve_among(
            best[call.rows.count + row], wanted.allowed, call.words, logits, width, column, call.weight->outputs,
            wanted.logits != nullptr);
    if (!wanted.logits) return;
    for (int i = 0; i < width; i += LANES) store(wanted.logits + column + i, load<Floats>(logits + i));
}

// Of 32 outputs the first 16 are gates, the others what they let through.
static void gate(const LinearCall& call, const float* sums, int width, size_t place) {
    for (int half = 0; half < width; half += HALF_PANEL)
        for (int i = 0; i < HALF_PANEL / 2; i += LANES) {
            Floats gates = load<Floats>(sums + half + i), ups = load<Floats>(sums + half + HALF_PANEL / 2 + i);
            const Floats gated = activated(gates, call.activation) * ups;
            if (call.to_floats)
                store((float*)call.out + place + half / 2 + i, gated);
            else
                narrow((uint16_t*)call.out + place + half / 2 + i, gated);
        }
}

// Gives the sums [rows][PANEL] of rows from `first` on, `width` outputs from `column` of all, to where they belong.
static void finish(const LinearCall& call, float* sums, int rows, int width, int first, int column, Best* best) {
    for (int r = 0; r < rows; r++, sums += PANEL) {
        if (call.bias)
            for (int i = 0; i < width; i += LANES)
                store(sums + i, load<Floats>(sums + i) + load<Floats>(call.bias + column + i));
        if (call.mode == GATED) {
            gate(call, sums, width, (first + r) * call.out_stride + column / 2);
            continue;
        }
        if (call.mode == LOGITS) {
            judge(call, sums, width, first + r, column, best);
            continue;
        }
        float* out = (float*)call.out + (first + r) * call.out_stride + column;
        for (int i = 0; i < width; i += LANES) {
            Floats value = load<Floats>(sums + i);
            store(out + i, call.mode == ADD ? load<Floats>(out + i) + value : value);
        }
    }
}

template <WeightKind KIND, int ROWS, int VECTORS, int LINES>
__attribute__((noinline)) static void tile(
    const LinearCall& call, int first, int panel, int column, const Run& run, const uint8_t* ahead, Best* best) {
    Floats sums[ROWS][VECTORS];
    multiply<KIND, ROWS, VECTORS, LINES>(sums, call, first, panel, column, run, ahead);
    const bool is_last = KIND != INT8_GROUP || run.end == call.weight->groups();
    alignas(64) float own[ROWS * PANEL];
    float* found = is_last ? own : run.carried;
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) store(found + r * PANEL + v * LANES, sums[r][v]);
    if (is_last) finish(call, found, ROWS, VECTORS * LANES, first, panel * PANEL + column, best);
}

template <WeightKind KIND, int VECTORS, int LINES>
CHAIRLIFT_INLINE void tile_of(
    int rows, const LinearCall& call, int first, int panel, int column, const Run& run, const uint8_t* ahead,
    Best* best) {
    constexpr int MOST = KIND == INT8_GROUP ? GROUP_TILE_ROWS : TILE_ROWS;
    switch (rows) {
        case 1: return tile<KIND, 1, VECTORS, LINES>(call, first, panel, column, run, ahead, best);
        case 2: if constexpr (MOST >= 2) return tile<KIND, 2, VECTORS, LINES>(call, first, panel, column, run, ahead, best);
        case 3: if constexpr (MOST >= 3) return tile<KIND, 3, VECTORS, LINES>(call, first, panel, column, run, ahead, best);
        case 4: if constexpr (MOST >= 4) return tile<KIND, 4, VECTORS, LINES>(call, first, panel, column, run, ahead, best);
        case 5: if constexpr (MOST >= 5) return tile<KIND, 5, VECTORS, LINES>(call, first, panel, column, run, ahead, best);
        case 6: if constexpr (MOST >= 6) return tile<KIND, 6, VECTORS, LINES>(call, first, panel, column, run, ahead, best);
    }
}

// All rows against VECTORS vectors of a panel; rows are cut into tiles that differ by one row at most. Of the cache
// lines ahead as many are fetched in each step of the first tiles as brings all of them in before the last one; of three
// tiles that would be too many at once, so they are cut into four.
template <WeightKind KIND, int VECTORS>
static void tiles(const LinearCall& call, int panel, int column, const uint8_t* ahead, size_t ahead_bytes, Best* best) {
    constexpr int MOST = KIND == INT8_GROUP ? GROUP_TILE_ROWS : TILE_ROWS;
    const int count = call.rows.count, least = (count + MOST - 1) / MOST;
    const int number = ahead_bytes && least == 3 ? 4 : least;
    const int groups = KIND == INT8_GROUP ? call.weight->groups() : 1;
    const bool in_runs = KIND == INT8_GROUP && number > 2;
    const int tiles_at_once = in_runs ? RUN_TILES : number, groups_at_once = in_runs ? RUN_GROUPS : groups;
    alignas(64) float carried[KIND == INT8_GROUP ? RUN_TILES * MOST * PANEL : 1];
    for (int begin = 0, begin_row = 0, row = 0; begin < number; begin += tiles_at_once, begin_row = row) {
        const int end = begin + tiles_at_once < number ? begin + tiles_at_once : number;
        for (Run run = {0, 0, carried}; run.begin < groups; run.begin = run.end) {
            run.end = run.begin + groups_at_once < groups ? run.begin + groups_at_once : groups;
            const size_t steps = in_runs ? (run.end - run.begin) * (GROUP / 4) : call.weight->steps;
            run.carried = carried, row = begin_row;
            for (int tile = begin, rows; tile < end; tile++, row += rows) {
                rows = count / number + (tile < count % number);
                const int lines = !ahead_bytes ? 0 : number == 1 ? 4 : number < 4 ? 2 : 1;
                if (lines == 0)
                    tile_of<KIND, VECTORS, 0>(rows, call, row, panel, column, run, ahead, best);
                else if (lines == 4)
                    tile_of<KIND, VECTORS, 4>(rows, call, row, panel, column, run, ahead, best);
                else if (lines == 2)
                    tile_of<KIND, VECTORS, 2>(rows, call, row, panel, column, run, ahead, best);
                else
                    tile_of<KIND, VECTORS, 1>(rows, call, row, panel, column, run, ahead, best);
                const size_t done = steps * lines * LINE;
                ahead += done, ahead_bytes -= done < ahead_bytes ? done : ahead_bytes;
                if (in_runs) run.carried += rows * PANEL;
            }
        }
    }
}

template <WeightKind KIND>
static void panels(const LinearCall& call, int half, int count, const uint8_t* ahead, size_t bytes, Best* best) {
    if constexpr (TILE_VECTORS == 2 * HALF_VECTORS)
        if (count == 2) return tiles<KIND, TILE_VECTORS>(call, half / 2, 0, ahead, bytes, best);
    for (int i = 0; i < count; i++) {
        tiles<KIND, HALF_VECTORS>(call, (half + i) / 2, (half + i) % 2 * HALF_PANEL, ahead, bytes, best);
        bytes = 0;
    }
}

static void linear(const LinearCall& call, int half, int count, const uint8_t* ahead, size_t bytes, Best* best) {
    switch (call.weight->kind) {
        case BFLOAT16: return panels<BFLOAT16>(call, half, count, ahead, bytes, best);
        case INT8_CHANNEL: return panels<INT8_CHANNEL>(call, half, count, ahead, bytes, best);
        case INT8_GROUP: return panels<INT8_GROUP>(call, half, count, ahead, bytes, best);
    }
}

}  // namespace chairlift::CHAIRLIFT_SET
