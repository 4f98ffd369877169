// Grouped-query attention over the paged cache: rows of one sequence and one KV head, in spans of 256 keys.
//
//     span     scores [rows, 256] = queries times keys          tiles of a few rows by 64 keys, sums in registers
//              weights = e**(score - max score of the span)   rounded to the numbers of the cache
//              sums [rows, head_dim] = weights times values   tiles of a few rows by 64 dimensions
//     then     the spans of a row are combined in order: a flash attention of two levels.
//
// Spans begin at multiples of 256 positions in every batch, so a row's bits do not depend on the thread that computes
// it.
//
// Number: that of the cache and the queries, bfloat16 or float32.
#pragma once

#include <cmath>

#include "kernels.h"
#include "linear.h"
#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

constexpr int SPAN_TILES = SPAN / KEY_TILE, KEY_VECTORS = KEY_TILE / LANES;
constexpr bool HAS_TILES = LANES >= 8 || NUM_REGISTERS == 32;
constexpr int REGISTER_ROWS = HAS_TILES ? 6 : 2, REGISTER_VECTORS = LANES == 8 ? 2 : 4;
// Up to WIDE_ROWS rows: more registers per row.
constexpr int WIDE_ROWS = HAS_TILES ? 2 : 0, WIDE_VECTORS = LANES == 8 ? 4 : 8;
constexpr float LOG2_E = 1.44269504f;
constexpr int PREFETCH_LINES = 4;

// Numbers in four bytes, which are multiplied together.
template <typename Number>
constexpr int PER_WORD = 4 / sizeof(Number);

// Of 16 registers a tile has 12 for sums, two for columns and one for a number of a row. Another one for the mask of the
// columns' upper halves, or for words that are kept for their second part, and a sum goes through memory in each step.
// So words are loaded again for each part, and so is the mask: for all that compilers know it may change.
constexpr bool LOADS_AGAIN = NUM_REGISTERS == 16 && Dot<Bfloat16>::PARTS == 2;
alignas(LINE) inline uint32_t UPPER_HALVES[] = {
    0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};

// Returns a column of the words of keys or values.
template <typename Number>
CHAIRLIFT_INLINE auto cache_column(Ints words, int part) {
    if constexpr (LOADS_AGAIN && PER_WORD<Number> == 2)
        if (part) return as_floats(words & load<Ints>(UPPER_HALVES));
    return Dot<Number>::column(words, part);
}

// Comes before each part of a word.
CHAIRLIFT_INLINE void begin_part() {
    if constexpr (LOADS_AGAIN) asm volatile("" ::: "memory");
}

// Tiles of keys whose scores are computed at once, and the most of any number of rows.
constexpr int score_tiles(int rows) {
    return (LANES == 8 && rows <= WIDE_ROWS ? WIDE_VECTORS : REGISTER_VECTORS) / KEY_VECTORS;
}
constexpr int MAX_SCORE_TILES = score_tiles(1);

// The rows of a tile.
template <typename Number>
struct TileRows {
    int count;
    const RowNumber<Number>* queries[MAX_TILE_ROWS];
    int last[MAX_TILE_ROWS];   // last visible key: the position of the row's token
    int first[MAX_TILE_ROWS];  // first visible key
    int first_key() const { return first[0]; }
    int last_key() const { return last[count - 1]; }
};

// Finds the addresses of `count` tiles of keys or values of the tile's sequence and KV head, from tile `first` on. A
// tile has 16 positions. The last address is repeated up to a multiple of MAX_SCORE_TILES.
template <typename Number>
static void find_cache_tiles(
    const AttentionCall& call, const AttentionTile& tile, const Number* cache, int first, int count,
    const Number** tiles) {
    const int per_block = call.cache.block_size / KEY_TILE, tile_elements = KEY_TILE * call.cache.head_dim;
    const auto* block = call.block_table + (size_t)tile.sequence * call.max_blocks + first / per_block;
    cache += tile.kv_head * call.cache.head_elements();
    for (int i = 0, within = first % per_block; i < count; i++) {
        tiles[i] = cache + *block * call.cache.block_elements + (size_t)within * tile_elements;
        if (++within == per_block) within = 0, block++;
    }
    // Scores are computed for several tiles at once; those of a repeated tile are not read.
    for (int more = count; more % MAX_SCORE_TILES; more++) tiles[more] = tiles[more - 1];
}

// Computes scores of ROWS rows and score_tiles(ROWS) key tiles into [rows][SPAN], from column 0. With PREFETCHES, each
// iteration prefetches one line of each tile in `ahead`.
template <typename Number, int ROWS, bool PREFETCHES>
static void compute_scores(
    const RowNumber<Number>* const* queries, const Number* const* keys, const Number* const* ahead, int dim,
    float* scores) {
    using Dot = CHAIRLIFT_SET::Dot<Number>;
    constexpr int VECTORS = score_tiles(ROWS) * KEY_VECTORS;
    Floats sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) sums[r][v] = Floats{};
    for (int word = 0; word < dim / PER_WORD<Number>; word++) {
        if constexpr (PREFETCHES) {
            for (int t = 0; t < score_tiles(ROWS); t++) prefetch(ahead[t] + word * KEY_TILE * PER_WORD<Number>);
        }
#pragma GCC unroll 2
        for (int part = 0; part < Dot::PARTS; part++) {
            begin_part();
            typename Dot::Column columns[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                columns[v] = cache_column<Number>(
                    load<Ints>(
                        keys[v / KEY_VECTORS] + (word * KEY_TILE + v % KEY_VECTORS * LANES) * PER_WORD<Number>),
                    part);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const auto row = Dot::row(queries[r] + PER_WORD<Number> * word, part);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) sums[r][v] = Dot::add(sums[r][v], columns[v], row);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) store(scores + r * SPAN + v * LANES, sums[r][v]);
}

// Value tiles of a span, from slot `first` of the first tile to before slot `end` of the last. Slots outside this range
// may hold other sequences' values or NaN and are never multiplied.
template <typename Number>
struct ValueTiles {
    const Number* tiles[SPAN_TILES];
    int count, first, end;
};

// Adds the values of the slots in a word, from `values` on, to the weighted sums of rows. With MASKS, slots that are not
// in_range are zeros: a weight of 0 is not enough, as 0 * NaN is NaN.
template <typename Number, bool MASKS, int ROWS, int VECTORS>
CHAIRLIFT_INLINE void add_values(
    Floats (&sums)[ROWS][VECTORS], const RowNumber<Number>* weights, const Number* values, Ints in_range) {
    using Dot = CHAIRLIFT_SET::Dot<Number>;
#pragma GCC unroll 2
    for (int part = 0; part < Dot::PARTS; part++) {
        begin_part();
        typename Dot::Column columns[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            const Ints words = load<Ints>(values + v * LANES * PER_WORD<Number>);
            columns[v] = cache_column<Number>(MASKS ? words & in_range : words, part);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            const auto row = Dot::row(weights + r * SPAN, part);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sums[r][v] = Dot::add(sums[r][v], columns[v], row);
        }
    }
}

// Computes the weighted sums of ROWS rows over all values, for VECTORS vectors of dimensions from `column` on, into out
// [ROWS][dim]. With each tile, the tile of the same index in `ahead` is prefetched, if there is one.
template <typename Number, int ROWS, int VECTORS>
static void weighted_sum(
    const RowNumber<Number>* weights, const ValueTiles<Number>& values, const Number* const* ahead, int dim, int column,
    float* out) {
    constexpr int SLOTS = PER_WORD<Number>;
    Floats sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) sums[r][v] = Floats{};
    for (int t = 0; t < values.count; t++, weights += KEY_TILE) {
        const int first = t ? 0 : values.first, end = t + 1 < values.count ? KEY_TILE : values.end;
        const bool is_whole = SLOTS == 1 || (first % SLOTS == 0 && end % SLOTS == 0);
        const Number* from = values.tiles[t] + (first / SLOTS * dim + column) * SLOTS;
        const Number* line = ahead ? ahead[t] : nullptr;
        for (int slot = first / SLOTS * SLOTS; slot < end; slot += SLOTS, from += dim * SLOTS) {
            if (line)
                for (int end = (slot + SLOTS) * dim, at = slot * dim; at < end; at += LINE / sizeof(Number))
                    prefetch(line + at);
            if (is_whole) {
                add_values<Number, false>(sums, weights + slot, from, Ints{});
                continue;
            }
            const int32_t in_range = (slot < first ? 0 : 0xffff) | (slot + 1 < end ? (int32_t)0xffff0000 : 0);
            add_values<Number, true>(sums, weights + slot, from, broadcast(in_range));
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) store(out + r * dim + column + v * LANES, sums[r][v]);
}

template <bool PREFETCHES, typename Number>
CHAIRLIFT_INLINE void dispatch_scores(
    int rows, const RowNumber<Number>* const* queries, const Number* const* keys, const Number* const* ahead, int dim,
    float* to) {
    with_rows<REGISTER_ROWS>(rows, [&](auto number) {
        compute_scores<Number, decltype(number)::value, PREFETCHES>(queries, keys, ahead, dim, to);
    });
}

template <int VECTORS, typename Number>
CHAIRLIFT_INLINE void dispatch_weighted_sum(
    int rows, const RowNumber<Number>* weights, const ValueTiles<Number>& values, const Number* const* ahead, int dim,
    int column, float* to) {
    constexpr int MAX_ROWS = VECTORS > REGISTER_VECTORS ? WIDE_ROWS : REGISTER_ROWS;
    // The portable kernels have no wide tiles.
    if constexpr (MAX_ROWS > 0)
        with_rows<MAX_ROWS>(rows, [&](auto number) {
            weighted_sum<Number, decltype(number)::value, VECTORS>(weights, values, ahead, dim, column, to);
        });
}

// Returns the largest score of one row, unscaled; -inf without a visible key. Sets the scores of invisible keys to
// -inf. With a soft cap, replaces scores by tanh(scaled score / cap), which lies within -1 and 1.
static float mask_and_max(const AttentionCall& call, float* scores, int begin, int width, int first, int last) {
    // Nearly all spans of a long row are visible to it as a whole and need no mask.
    const bool is_whole = first <= begin && begin + width - 1 <= last, is_capped = call.softcap > 0;
    Ints position = broadcast(begin);
    for (int lane = 0; lane < LANES; lane++) position[lane] += lane;
    for (int i = 0; i < width && (is_capped || !is_whole); i += LANES, position += LANES) {
        Floats x = load<Floats>(scores + i);
        if (is_capped) x = hyperbolic_tangent(x * call.scale / call.softcap);
        if (!is_whole) x = (position >= first) & (position <= last) ? x : broadcast(-INFINITY);
        store(scores + i, x);
    }
    Floats max_values = load<Floats>(scores);
    for (int i = LANES; i < width; i += LANES) max_values = maximum(max_values, load<Floats>(scores + i));
    return reduce_max(max_values);
}

// Converts the scores of one row to weights 2**((score - max_score) * factor), rounded to numbers of the cache. Returns
// the sum of the weights before they are rounded.
template <typename Number>
static float span_weights(
    const float* scores, RowNumber<Number>* weights, int width, float factor, float max_score) {
    // Without a visible key every score is -inf, and -inf - -inf would be NaN.
    const float bound = max_score == -INFINITY ? 0.0f : max_score;
    Floats total = {};
    for (int i = 0; i < width; i += LANES) {
        const Floats exponent = (load<Floats>(scores + i) - bound) * factor;
        const Floats weight =
            sizeof(Number) == 4 ? power_of_two(exponent, PRECISE_POWER) : power_of_two(exponent, COARSE_POWER);
        total += weight;
        store_row<Number>(weights + i, weight);
    }
    return reduce_sum(total);
}

// Adds partial results to a row's: weighted sums of the values, the largest score, the total of the weights.
CHAIRLIFT_INLINE void combine_row(
    float* sums, float& max_score, float& total, const float* new_sums, float new_max, float new_total, int dim) {
    // A NaN of either side stays, so that the row's request fails and no other.
    const float max_of_both = max_score > new_max || max_score != max_score ? max_score : new_max;
    if (max_of_both == -INFINITY) return;
    const float factor = exp2f(max_score - max_of_both), new_factor = exp2f(new_max - max_of_both);
    for (int i = 0; i < dim; i += LANES)
        store(sums + i, fma(load<Floats>(new_sums + i), broadcast(new_factor), load<Floats>(sums + i) * factor));
    total = total * factor + new_total * new_factor;
    max_score = max_of_both;
}

// The key tiles of one span that are visible to any row. Blocks before them may belong to other sequences by now.
template <typename Number>
struct SpanTiles {
    int first_tile, num_tiles, first, end;
    const Number* keys[SPAN_TILES];
};

template <typename Number>
static SpanTiles<Number> find_span_tiles(
    const AttentionCall& call, const AttentionTile& tile, int first, int last, int span) {
    SpanTiles<Number> span_tiles;
    span_tiles.end = last + 1 < (span + 1) * SPAN ? last + 1 : (span + 1) * SPAN;
    span_tiles.first = first > span * SPAN ? first : span * SPAN;
    span_tiles.first_tile = span_tiles.first / KEY_TILE;
    span_tiles.num_tiles = (span_tiles.end - span_tiles.first_tile * KEY_TILE + KEY_TILE - 1) / KEY_TILE;
    const Number* keys = (const Number*)call.cache.keys;
    find_cache_tiles(call, tile, keys, span_tiles.first_tile, span_tiles.num_tiles, span_tiles.keys);
    return span_tiles;
}

// Prefetches `count` lines of each tile, from line `first` on.
template <typename Number>
CHAIRLIFT_INLINE void prefetch_lines(const Number* const* tiles, int num_tiles, int first, int count) {
    for (int t = 0; t < num_tiles; t++)
        for (int line = first; line < first + count; line++) prefetch(tiles[t] + line * LINE / sizeof(Number));
}

// Computes one span. Writes the weighted sums [rows][dim] and, per row, the largest score as an exponent of two and the
// total of the weights.
//
// With few rows, memory is the bottleneck. With one or two rows the hardware prefetcher does better than software
// prefetching; only the first lines of the values are prefetched, while weights are computed and memory is idle. With
// more rows in one group, values are prefetched while keys are read, and the keys of the span `next` while values are
// read: see ADR 0025.
template <typename Number>
static void compute_span(
    const AttentionCall& call, const AttentionTile& tile, const TileRows<Number>& tile_rows,
    const SpanTiles<Number>& span_tiles, const SpanTiles<Number>& next, float* sums, float* max_scores, float* totals) {
    const int dim = call.cache.head_dim, rows = tile_rows.count, begin = span_tiles.first_tile * KEY_TILE;
    const int width = span_tiles.num_tiles * KEY_TILE;
    const float factor = (call.softcap > 0 ? call.softcap : call.scale) * LOG2_E;
    alignas(64) float scores[MAX_TILE_ROWS * SPAN];
    alignas(64) RowNumber<Number> weights[MAX_TILE_ROWS * SPAN];
    ValueTiles<Number> values = {
        {}, span_tiles.num_tiles, span_tiles.first - begin,
        span_tiles.end - begin - (span_tiles.num_tiles - 1) * KEY_TILE};
    const Number* cached_values = (const Number*)call.cache.values;
    find_cache_tiles(call, tile, cached_values, span_tiles.first_tile, span_tiles.num_tiles, values.tiles);
    const int groups = (rows + REGISTER_ROWS - 1) / REGISTER_ROWS;
    const bool hardware_prefetches = LANES == 16 && rows <= WIDE_ROWS;
    const bool software_prefetches = (groups == 1 || LANES < 16) && !hardware_prefetches;
    for (int t = 0; t < span_tiles.num_tiles; t += score_tiles(rows / groups))
        for (int group = 0, r = 0, count; group < groups; group++, r += count) {
            count = rows / groups + (group < rows % groups);
            const Number *const *keys = span_tiles.keys + t, *const *ahead = values.tiles + t;
            float* to = scores + r * SPAN + t * KEY_TILE;
            if (software_prefetches && group == 0)
                dispatch_scores<true>(count, tile_rows.queries + r, keys, ahead, dim, to);
            else
                dispatch_scores<false>(count, tile_rows.queries + r, keys, ahead, dim, to);
        }
    for (int r = 0; r < rows; r++) {
        if (hardware_prefetches) prefetch_lines(values.tiles, span_tiles.num_tiles, r * PREFETCH_LINES, PREFETCH_LINES);
        max_scores[r] = mask_and_max(call, scores + r * SPAN, begin, width, tile_rows.first[r], tile_rows.last[r]);
    }
    for (int r = 0; r < rows; r++) {
        totals[r] = span_weights<Number>(scores + r * SPAN, weights + r * SPAN, width, factor, max_scores[r]);
        max_scores[r] *= factor;
    }
    const Number* ahead[SPAN_TILES];
    for (int t = 0; t < span_tiles.num_tiles; t++) ahead[t] = t < next.num_tiles ? next.keys[t] : nullptr;
    for (int group = 0, r = 0, count; group < groups; group++, r += count) {
        count = rows / groups + (group < rows % groups);
        for (int column = 0, step_width; column < dim; column += step_width) {
            const int remaining = (dim - column) / LANES;
            const int vectors = count <= WIDE_ROWS && remaining >= WIDE_VECTORS ? WIDE_VECTORS
                              : remaining >= REGISTER_VECTORS                   ? REGISTER_VECTORS
                                                                                : 1;
            step_width = vectors * LANES;
            const Number* const* tiles = software_prefetches && group == 0 && column == 0 ? ahead : nullptr;
            if (vectors == WIDE_VECTORS)
                dispatch_weighted_sum<WIDE_VECTORS>(
                    count, weights + r * SPAN, values, tiles, dim, column, sums + r * dim);
            else if (vectors == REGISTER_VECTORS)
                dispatch_weighted_sum<REGISTER_VECTORS>(
                    count, weights + r * SPAN, values, tiles, dim, column, sums + r * dim);
            else
                dispatch_weighted_sum<1>(count, weights + r * SPAN, values, tiles, dim, column, sums + r * dim);
        }
    }
}

// Finds the rows of a tile; without `memory` for widened queries, [MAX_TILE_ROWS][dim], not their queries.
template <typename Number>
static TileRows<Number> make_tile_rows(
    const AttentionCall& call, const AttentionTile& tile, RowNumber<Number>* memory) {
    const int heads_per_kv = call.num_heads / call.cache.num_kv_heads, dim = call.cache.head_dim;
    const int begin = call.cu_seqlens_q[tile.sequence], end = call.cu_seqlens_q[tile.sequence + 1];
    TileRows<Number> tile_rows;
    tile_rows.count = tile.num_rows;
    for (int i = 0; i < tile.num_rows; i++) {
        const int token = begin + (tile.first_row + i) / heads_per_kv, head = (tile.first_row + i) % heads_per_kv;
        const Number* query =
            (const Number*)call.queries + token * call.queries_stride + (tile.kv_head * heads_per_kv + head) * dim;
        if (memory) tile_rows.queries[i] = row_numbers(query, dim, memory + i * dim);
        tile_rows.last[i] = call.seq_lens[tile.sequence] - (end - token);
        tile_rows.first[i] = call.window && tile_rows.last[i] >= call.window ? tile_rows.last[i] - call.window + 1 : 0;
    }
    return tile_rows;
}

static void init_row(
    const AttentionCall& call, const AttentionTile& tile, int row, float* sums, float& max_score, float& total) {
    const int heads_per_kv = call.num_heads / call.cache.num_kv_heads;
    for (int i = 0; i < call.cache.head_dim; i++) sums[i] = 0.0f;
    // A sink is a key without a value: its weight is 2**0 and adds to the total alone.
    max_score = call.sinks ? LOG2_E * call.sinks[tile.kv_head * heads_per_kv + (tile.first_row + row) % heads_per_kv]
                           : -INFINITY;
    total = call.sinks ? 1.0f : 0.0f;
}

static void write_row(const AttentionCall& call, const AttentionTile& tile, int row, const float* sums, float total) {
    const int heads_per_kv = call.num_heads / call.cache.num_kv_heads, dim = call.cache.head_dim;
    const int token = call.cu_seqlens_q[tile.sequence] + (tile.first_row + row) / heads_per_kv;
    const int head = tile.kv_head * heads_per_kv + (tile.first_row + row) % heads_per_kv;
    const size_t offset = token * call.out_stride + head * dim;
    const float inverse = 1.0f / total;
    for (int i = 0; i < dim; i += LANES) {
        const Floats value = load<Floats>(sums + i) * inverse;
        if (call.out_is_f32)
            store((float*)call.out + offset + i, value);
        else
            store_bf16((uint16_t*)call.out + offset + i, value);
    }
}

// Computes one tile. A tile with all spans of its row block writes the output, any other its partial results.
template <typename Number>
static void attention_of(const AttentionCall& call, const AttentionTile& tile, const AttentionTile* next_tile) {
    constexpr bool IS_WIDENED = WIDENS_ROWS && sizeof(Number) == sizeof(Bfloat16);
    const int dim = call.cache.head_dim;
    alignas(64) RowNumber<Number> memory[IS_WIDENED ? MAX_TILE_ROWS * MAX_HEAD_DIM : 1];
    const TileRows<Number> tile_rows = make_tile_rows<Number>(call, tile, memory);
    SpanTiles<Number> span_tiles = find_span_tiles<Number>(
        call, tile, tile_rows.first_key(), tile_rows.last_key(), tile.first_span), next;
    alignas(64) float sums[MAX_TILE_ROWS * MAX_HEAD_DIM], combined[MAX_TILE_ROWS * MAX_HEAD_DIM];
    float max_scores[MAX_TILE_ROWS], totals[MAX_TILE_ROWS], combined_max[MAX_TILE_ROWS], combined_totals[MAX_TILE_ROWS];
    const bool is_whole = tile.partial_index < 0;
    for (int r = 0; is_whole && r < tile_rows.count; r++)
        init_row(call, tile, r, combined + r * dim, combined_max[r], combined_totals[r]);
    for (int i = 0; i < tile.num_spans; i++) {
        next.num_tiles = 0;
        if (i + 1 < tile.num_spans)
            next = find_span_tiles<Number>(
                call, tile, tile_rows.first_key(), tile_rows.last_key(), tile.first_span + i + 1);
        else if (next_tile) {
            const TileRows<Number> next_rows = make_tile_rows<Number>(call, *next_tile, nullptr);
            next = find_span_tiles<Number>(
                call, *next_tile, next_rows.first_key(), next_rows.last_key(), next_tile->first_span);
        }
        compute_span(call, tile, tile_rows, span_tiles, next, sums, max_scores, totals);
        span_tiles = next;
        for (int r = 0; r < tile_rows.count; r++) {
            if (is_whole) {
                combine_row(
                    combined + r * dim, combined_max[r], combined_totals[r], sums + r * dim, max_scores[r], totals[r],
                    dim);
                continue;
            }
            float* to = call.partials + ((size_t)tile.partial_index + i * tile_rows.count + r) * (dim + 2);
            memcpy(to, sums + r * dim, dim * sizeof(float));
            to[dim] = max_scores[r], to[dim + 1] = totals[r];
        }
    }
    for (int r = 0; is_whole && r < tile_rows.count; r++)
        write_row(call, tile, r, combined + r * dim, combined_totals[r]);
}

static void attention(const AttentionCall& call, const AttentionTile& tile, const AttentionTile* next_tile) {
    if (call.cache.is_f32) return attention_of<float>(call, tile, next_tile);
    return attention_of<Bfloat16>(call, tile, next_tile);
}

// Combines the partial results of a row block and writes its output. tile: the first tile of the row block.
static void combine(const AttentionCall& call, const AttentionTile& tile, int spans) {
    const int dim = call.cache.head_dim;
    alignas(64) float sums[MAX_HEAD_DIM];
    float max_score, total;
    for (int r = 0; r < tile.num_rows; r++) {
        init_row(call, tile, r, sums, max_score, total);
        for (int span = 0; span < spans; span++) {
            const float* from = call.partials + ((size_t)tile.partial_index + span * tile.num_rows + r) * (dim + 2);
            combine_row(sums, max_score, total, from, from[dim], from[dim + 1], dim);
        }
        write_row(call, tile, r, sums, total);
    }
}

}  // namespace chairlift::CHAIRLIFT_SET
