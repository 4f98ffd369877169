// Multiplies rows by a packed weight, in tiles of a few rows by a panel. Sums stay in registers from the first input to
// the last.
//
//                       64 outputs (or 32)
//     step k:          [  panel, 4 bytes each  ]
//     row 0  [4 bytes]  sums[0][0..]                 Each sum runs over the steps in order, whatever the tile's shape,
//     row 1  [4 bytes]  sums[1][0..]                 so a row's product has the same bits in every batch.
//     ...
//
// While a panel is multiplied, the next one is prefetched, so that memory and multipliers work at the same time.
#pragma once

#include <cmath>

#include "dot.h"
#include "kernels.h"
#include "linear_groups.h"
#include "simd.h"
#include "tiles.h"

namespace chairlift::CHAIRLIFT_SET {

// Multiplies rows [first, first + ROWS) by VECTORS vectors of a panel, from `column` of the panel on.
template <WeightKind KIND, int ROWS, int VECTORS, bool IS_UNPACKED, typename Prefetch>
CHAIRLIFT_INLINE void multiply(
    Floats (&sums)[ROWS][VECTORS], const LinearCall& call, int first, int panel, int column, const StepRange& range,
    [[maybe_unused]] const UnpackedRange* unpacked, [[maybe_unused]] const WideBfloat16* wide_rows,
    const uint8_t* ahead) {
    [[maybe_unused]] const Weight& weight = *call.weight;
    using Numbers = CHAIRLIFT_SET::Numbers<KIND>;
    [[maybe_unused]] const uint8_t* rows =
        call.rows.data + first * call.rows.stride + range.begin * Dot<Numbers>::ROW_BYTES;
    [[maybe_unused]] const uint8_t* data = weight.data + panel * weight.panel_bytes() + range.begin * STEP_BYTES +
                                           column * (KIND == FLOAT16 ? sizeof(Float16) : 4);
    if constexpr (KIND != INT8_CHANNEL) {
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] = range.begin ? load<Floats>(range.carried_sums + r * PANEL + v * LANES) : Floats{};
    }
    if constexpr (KIND == BFLOAT16 && widens(ROWS)) {
        accumulate<Numbers, Prefetch>(sums, wide_rows, 2 * range_steps<KIND>(), data, range.end - range.begin, ahead);
    } else if constexpr (!is_quantized(KIND)) {
        accumulate<Numbers, Prefetch>(sums, rows, call.rows.stride, data, range.end - range.begin, ahead);
    } else if constexpr (KIND == INT8_CHANNEL) {
        Ints int_sums[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) int_sums[r][v] = broadcast(Dot<Int8>::start(call.rows.sums[first + r]));
        accumulate<Numbers, Prefetch>(int_sums, rows, call.rows.stride, data, weight.steps, ahead);
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            Floats scale = load<Floats>(weight.scales + panel * PANEL + column + v * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
                sums[r][v] = to_floats(int_sums[r][v]) * (scale * call.rows.scales[first + r]);
        }
    } else {
        multiply_groups<KIND, IS_UNPACKED, Prefetch>(
            sums, call, first, panel, column, range, unpacked, ahead);
    }
}

CHAIRLIFT_INLINE Floats activate(Floats x, Activation activation) {
    if (activation == SILU) return x / (1.0f + exponential(x < -88.0f ? broadcast(88.0f) : -x));
    if (activation == GELU_TANH) {
        Floats inner = 0.7978845608f * fma(x * x * x, broadcast(0.044715f), x);
        return 0.5f * x * (1.0f + hyperbolic_tangent(inner));
    }
    Floats value;
    for (int i = 0; i < LANES; i++) value[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.7071067812f));
    return value;
}

// A NaN stays one: it fails the comparisons.
CHAIRLIFT_INLINE Floats clamped_swiglu(Floats gates, Floats ups) {
    gates = gates > SWIGLU_LIMIT ? broadcast(SWIGLU_LIMIT) : gates;
    ups = ups > SWIGLU_LIMIT ? broadcast(SWIGLU_LIMIT) : (ups < -SWIGLU_LIMIT ? broadcast(-SWIGLU_LIMIT) : ups);
    const Floats inner = gates * -SWIGLU_SLOPE;
    return (ups + 1.0f) * (gates / (1.0f + exponential(inner > 88.0f ? broadcast(88.0f) : inner)));
}

// Updates the argmax of a row with `width` more logits.
static void update_argmax(ArgMax& argmax, const float* logits, int width, int column, int outputs) {
    Floats max_values = load<Floats>(logits), zero_products = max_values * 0.0f;
    for (int i = LANES; i < width; i += LANES) {
        Floats more = load<Floats>(logits + i);
        max_values = maximum(max_values, more), zero_products += more * 0.0f;
    }
    const float max_value = reduce_max(max_values);
    // A NaN or infinity makes the sum of products with 0 NaN.
    const bool max_is_exact = reduce_sum(zero_products) == 0.0f && column + width <= outputs;
    // Panels come in any order, so an equal logit with a lower id still counts.
    if (max_is_exact && !(max_value > argmax.value || (max_value == argmax.value && column < argmax.id))) return;
    for (int i = 0; i < width && column + i < outputs; i++) {
        const ArgMax other = {logits[i], column + i};
        if (argmax.is_less_than(other)) argmax = other;
    }
}

// Sets logits that the row's bitmask does not allow to -INFINITY and updates its argmax with the others.
static void update_masked_argmax(
    ArgMax& argmax, const uint32_t* bitmask, int mask_words, float* logits, int width, int column, int outputs,
    bool keeps_logits) {
    const Floats disallowed = broadcast(-INFINITY);
    for (int half = 0; half < width; half += HALF_PANEL, column += HALF_PANEL, logits += HALF_PANEL) {
        const int word = column / HALF_PANEL;
        const uint32_t bits = word < mask_words ? bitmask[word] : 0;
        // No output of these 32 is allowed, and the row's logits are not read.
        if (!bits && !keeps_logits) continue;
        Floats max_values = disallowed;
        for (int i = 0; i < HALF_PANEL; i += LANES) {
            const Floats masked = bits ? select(bits >> i, load<Floats>(logits + i), disallowed) : disallowed;
            max_values = maximum(max_values, masked);
            store(logits + i, masked);
        }
        const float max_value = reduce_max(max_values);
        if (!(max_value > argmax.value || (max_value == argmax.value && column < argmax.id))) continue;
        for (int i = 0; i < HALF_PANEL && column + i < outputs; i++) {
            const ArgMax other = {logits[i], column + i};
            if ((bits >> i & 1) && argmax.is_less_than(other)) argmax = other;
        }
    }
}

// Updates the argmax of a row with `width` logits and writes them if the row needs logits.
static void write_logits(const LinearCall& call, float* logits, int width, int row, int column, ArgMax* argmax) {
    const LogitsRow& row_output = call.logits_rows[row];
    update_argmax(argmax[row], logits, width, column, call.weight->outputs);
    if (row_output.bitmask)
        update_masked_argmax(
            argmax[call.rows.count + row], row_output.bitmask, call.mask_words, logits, width, column,
            call.weight->outputs, row_output.logits != nullptr);
    if (!row_output.logits) return;
    for (int i = 0; i < width; i += LANES) store(row_output.logits + column + i, load<Floats>(logits + i));
}

// Writes activation(gate) * up. Of 32 outputs, the first 16 are gates and the others their ups.
static void apply_gate(const LinearCall& call, const float* sums, int width, size_t offset) {
    for (int half = 0; half < width; half += HALF_PANEL)
        for (int i = 0; i < HALF_PANEL / 2; i += LANES) {
            Floats gates = load<Floats>(sums + half + i), ups = load<Floats>(sums + half + HALF_PANEL / 2 + i);
            const Floats value = call.activation == CLAMPED_SWIGLU ? clamped_swiglu(gates, ups)
                                                                   : activate(gates, call.activation) * ups;
            if (call.out_is_f32)
                store((float*)call.out + offset + half / 2 + i, value);
            else
                store_bf16((uint16_t*)call.out + offset + half / 2 + i, value);
        }
}

// Adds the bias to sums [rows][PANEL] and writes them as the mode requires: rows from `first` on, `width` outputs from
// `column` of all outputs on.
static void write_output(
    const LinearCall& call, float* sums, int rows, int width, int first, int column, ArgMax* argmax) {
    for (int r = 0; r < rows; r++, sums += PANEL) {
        if (call.bias)
            for (int i = 0; i < width; i += LANES)
                store(sums + i, load<Floats>(sums + i) + load<Floats>(call.bias + column + i));
        if (call.mode == GATED) {
            apply_gate(call, sums, width, (first + r) * call.out_stride + column / 2);
            continue;
        }
        if (call.mode == LOGITS) {
            write_logits(call, sums, width, first + r, column, argmax);
            continue;
        }
        if (call.mode == ROUND) {
            uint16_t* rounded = (uint16_t*)call.out + (first + r) * call.out_stride + column;
            for (int i = 0; i < width; i += LANES) store_bf16(rounded + i, load<Floats>(sums + i));
            continue;
        }
        float* out = (float*)call.out + (first + r) * call.out_stride + column;
        for (int i = 0; i < width; i += LANES) {
            Floats value = load<Floats>(sums + i);
            store(out + i, call.mode == ADD ? load<Floats>(out + i) + value : value);
        }
    }
}

template <WeightKind KIND, int ROWS, int VECTORS, bool IS_UNPACKED, typename Prefetch>
__attribute__((noinline)) static void multiply_tile(
    const LinearCall& call, int first, int panel, int column, const StepRange& range, const UnpackedRange* unpacked,
    const uint8_t* ahead, ArgMax* argmax) {
    constexpr int SLICE = slice_vectors(ROWS, VECTORS);
    constexpr bool IS_WIDENED = KIND == BFLOAT16 && widens(ROWS);
    const bool is_last = range.end == call.weight->steps;
    alignas(64) float local_sums[ROWS * PANEL];
    constexpr int WIDE_STRIDE = 2 * range_steps<BFLOAT16>();
    alignas(64) WideBfloat16 wide_rows[IS_WIDENED ? ROWS * WIDE_STRIDE : 1];
    for (int r = 0; IS_WIDENED && r < ROWS; r++) {
        const uint8_t* row = call.rows.data + (first + r) * call.rows.stride + range.begin * 4;
        row_numbers((const uint16_t*)row, 2 * (range.end - range.begin), wide_rows + r * WIDE_STRIDE);
    }
    for (int begin = 0; begin < VECTORS * LANES; begin += SLICE * LANES) {
        Floats sums[ROWS][SLICE];
        const StepRange slice_range = {range.begin, range.end, range.carried_sums + begin};
        multiply<KIND, ROWS, SLICE, IS_UNPACKED, Prefetch>(
            sums, call, first, panel, column + begin, slice_range, unpacked, wide_rows, ahead);
        float* results = (is_last ? local_sums : range.carried_sums) + begin;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int v = 0; v < SLICE; v++) store(results + r * PANEL + v * LANES, sums[r][v]);
        ahead += Prefetch::bytes(range.end - range.begin);
    }
    if (is_last) write_output(call, local_sums, ROWS, VECTORS * LANES, first, panel * PANEL + column, argmax);
}

// Calls function(std::integral_constant<int, rows>) for 1 to MAX_ROWS rows; no caller has more.
template <int MAX_ROWS, typename Function>
CHAIRLIFT_INLINE void with_rows(int rows, Function function) {
    if constexpr (MAX_ROWS > 1) {
        if (rows < MAX_ROWS) return with_rows<MAX_ROWS - 1>(rows, function);
    }
    function(std::integral_constant<int, MAX_ROWS>{});
}

// Multiplies all rows by VECTORS vectors of a panel. The rows are divided into tiles that differ by at most one row.
//
// Each step prefetches as many lines of the panel ahead as needed to have all of it before the last tile ends. With
// three tiles that are not divided into slices it would be too many lines at once, so the rows are divided into four.
template <WeightKind KIND, int VECTORS>
static void multiply_panel(
    const LinearCall& call, int panel, int column, const uint8_t* ahead, size_t ahead_bytes, int num_halves,
    ArgMax* argmax) {
    constexpr int MAX_ROWS = max_tile_rows<KIND, VECTORS>();
    const int count = call.rows.count, min_tiles = (count + MAX_ROWS - 1) / MAX_ROWS;
    const int num_tiles = LANES == 16 && ahead_bytes && min_tiles == 3 ? 4 : min_tiles;
    const int all_steps = call.weight->steps;
    const bool in_ranges = has_ranges<KIND>(num_tiles, (count + num_tiles - 1) / num_tiles);
    const int tiles_at_once = in_ranges ? RANGE_TILES : num_tiles;
    const int steps_at_once = in_ranges ? range_steps<KIND>() : all_steps;
    alignas(64) float carried_sums[KIND != INT8_CHANNEL ? RANGE_TILES * MAX_ROWS * PANEL : 1];
    [[maybe_unused]] UnpackedRange unpacked;
    for (int begin = 0, begin_row = 0, row = 0; begin < num_tiles; begin += tiles_at_once, begin_row = row) {
        const int end = begin + tiles_at_once < num_tiles ? begin + tiles_at_once : num_tiles;
        for (StepRange range = {0, 0, carried_sums}; range.begin < all_steps; range.begin = range.end) {
            range.end = range.begin + steps_at_once < all_steps ? range.begin + steps_at_once : all_steps;
            range.carried_sums = carried_sums, row = begin_row;
            if constexpr (is_unpacked(KIND))
                if (in_ranges) unpacked.unpack<KIND>(*call.weight, panel, column, range);
            for (int tile = begin, rows; tile < end; tile++, row += rows) {
                rows = count / num_tiles + (tile < count % num_tiles);
                const int num_slices = VECTORS / slice_vectors(rows, VECTORS);
                const int num_passes = num_tiles * num_slices * num_halves;
                const auto run = [&]<typename Prefetch>(Prefetch) {
                    // Without a panel ahead, lines of this one are prefetched, which are in the cache.
                    const uint8_t* lines = ahead_bytes ? ahead : call.weight->data + panel * call.weight->panel_bytes();
                    with_rows<MAX_ROWS>(rows, [&](auto number) {
                        constexpr int ROWS = decltype(number)::value;
                        // Tiles of ranges have at least 3 rows, and prefetch one line at a time.
                        if constexpr (is_unpacked(KIND) && ROWS > 2 && Prefetch::LINES == 1)
                            if (in_ranges)
                                return multiply_tile<KIND, ROWS, VECTORS, true, Prefetch>(
                                    call, row, panel, column, range, &unpacked, lines, argmax);
                        multiply_tile<KIND, ROWS, VECTORS, false, Prefetch>(
                            call, row, panel, column, range, nullptr, lines, argmax);
                    });
                    return num_slices * Prefetch::bytes(range.end - range.begin);
                };
                size_t prefetched;
                if constexpr (has_few_variants(KIND) && LANES < 8)
                    prefetched = run(Prefetches<1, 1>{});
                else if constexpr (has_groups(KIND))
                    prefetched = !ahead_bytes || num_passes >= 4 ? run(Prefetches<1, 1>{})
                                 : num_passes == 1               ? run(Prefetches<4, 1>{})
                                                                 : run(Prefetches<2, 1>{});
                else if (!ahead_bytes)
                    prefetched = run(Prefetches<0, 1>{});
                else if (num_passes < 4)
                    prefetched = num_passes == 1 ? run(Prefetches<4, 1>{}) : run(Prefetches<2, 1>{});
                else if (SPREADS_PREFETCHES<KIND> && num_passes >= 8 && num_passes < 32)
                    prefetched = num_passes < 16 ? run(Prefetches<1, 2>{}) : run(Prefetches<1, 4>{});
                else
                    prefetched = run(Prefetches<1, 1>{});
                if (ahead_bytes)
                    ahead += prefetched, ahead_bytes -= prefetched < ahead_bytes ? prefetched : ahead_bytes;
                if (in_ranges) range.carried_sums += rows * PANEL;
            }
        }
    }
}

template <WeightKind KIND>
static void multiply_half_panels(
    const LinearCall& call, int half, int count, const uint8_t* ahead, size_t bytes, ArgMax* argmax) {
    if constexpr (HAS_WHOLE_PANELS<KIND>)
        if (count == 2 && takes_whole_panels<KIND>(call.rows.count))
            return multiply_panel<KIND, TILE_VECTORS>(call, half / 2, 0, ahead, bytes, 1, argmax);
    // Each half prefetches as much.
    bytes /= count;
    for (int i = 0; i < count; i++, ahead += bytes) {
        const int panel = (half + i) / 2, column = (half + i) % 2 * HALF_PANEL;
        multiply_panel<KIND, HALF_VECTORS>(call, panel, column, ahead, bytes, count, argmax);
    }
}

static void linear(const LinearCall& call, int half, int count, const uint8_t* ahead, size_t bytes, ArgMax* argmax) {
    if (call.rows.count == 0) return;
    switch (call.weight->kind) {
        case BFLOAT16: return multiply_half_panels<BFLOAT16>(call, half, count, ahead, bytes, argmax);
        case INT8_CHANNEL: return multiply_half_panels<INT8_CHANNEL>(call, half, count, ahead, bytes, argmax);
        case INT8_GROUP: return multiply_half_panels<INT8_GROUP>(call, half, count, ahead, bytes, argmax);
        case FLOAT32: return multiply_half_panels<FLOAT32>(call, half, count, ahead, bytes, argmax);
        case FLOAT16: return multiply_half_panels<FLOAT16>(call, half, count, ahead, bytes, argmax);
        case INT4_GROUP: return multiply_half_panels<INT4_GROUP>(call, half, count, ahead, bytes, argmax);
        case Q4_0: return multiply_half_panels<Q4_0>(call, half, count, ahead, bytes, argmax);
        case Q5_0: return multiply_half_panels<Q5_0>(call, half, count, ahead, bytes, argmax);
        case Q5_1: return multiply_half_panels<Q5_1>(call, half, count, ahead, bytes, argmax);
        case Q8_0: return multiply_half_panels<Q8_0>(call, half, count, ahead, bytes, argmax);
        case Q4_K: return multiply_half_panels<Q4_K>(call, half, count, ahead, bytes, argmax);
        case Q5_K: return multiply_half_panels<Q5_K>(call, half, count, ahead, bytes, argmax);
        case Q6_K: return multiply_half_panels<Q6_K>(call, half, count, ahead, bytes, argmax);
        case IQ4_NL: return multiply_half_panels<IQ4_NL>(call, half, count, ahead, bytes, argmax);
        case IQ4_XS: return multiply_half_panels<IQ4_XS>(call, half, count, ahead, bytes, argmax);
        case MXFP4: return multiply_half_panels<MXFP4>(call, half, count, ahead, bytes, argmax);
        case INT6_GROUP: return multiply_half_panels<INT6_GROUP>(call, half, count, ahead, bytes, argmax);
    }
}

}  // namespace chairlift::CHAIRLIFT_SET
