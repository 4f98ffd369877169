// Grouped-query attention over the paged cache: rows of one sequence and one key head against spans of 256 keys.
//
//     span     scores [rows, 256] = queries times keys      tiles of a few rows by 64 keys, sums in registers
//              weights = e**(score - largest of the span)   rounded to bfloat16
//              sums [rows, head_dim] = weights times values tiles of a few rows by 64 dimensions
//     then     the spans of a row are joined in order: a flash attention of two levels.
//
// Spans begin at multiples of 256 positions whatever the batch, so a row's bits do not depend on who works on it.
#pragma once

#include <cmath>

#include "kernels.h"
#include "linear.h"
#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

constexpr int SPAN_TILES = SPAN / KEY_TILE, KEY_VECTORS = KEY_TILE / LANES;
constexpr int ATTEND_ROWS = LANES == 16 ? 6 : 2, ATTEND_VECTORS = 4;
constexpr int WIDE_ROWS = LANES == 16 ? 2 : 0, WIDE_VECTORS = 8;  // so few rows have registers for more at a time
constexpr float LOG2_E = 1.44269504f;
constexpr int SCORED_TILES = ATTEND_VECTORS / KEY_VECTORS, LINES_FETCHED = 4;

// What is known of the rows of an item.
struct Asking {
    int count;
    const uint16_t* queries[MAX_ITEM_ROWS];
    int last[MAX_ITEM_ROWS];   // the position of the row's token: the last key that it sees
    int first[MAX_ITEM_ROWS];  // the first key that it sees
    int lowest() const { return first[0]; }
    int highest() const { return last[count - 1]; }
};

// Finds `count` tiles of keys, or values, of the item's sequence and head: 16 positions each, from tile `first` on; and the
// last one again, up to a multiple of SCORED_TILES.
static void find_tiles(
    const AttendCall& call, const AttendItem& item, const uint16_t* cache, int first, int count, const uint16_t** tiles) {
    const int per_block = call.cache.block_size / KEY_TILE, tile_elements = KEY_TILE * call.cache.head_dim;
    const auto* block = call.block_table + (size_t)item.sequence * call.max_blocks + first / per_block;
    cache += item.kv_head * call.cache.head_elements();
    for (int i = 0, within = first % per_block; i < count; i++) {
        tiles[i] = cache + *block * call.cache.block_elements() + (size_t)within * tile_elements;
        if (++within == per_block) within = 0, block++;
    }
    for (int more = count; more % SCORED_TILES; more++) tiles[more] = tiles[more - 1];
}

// Scores of ROWS rows and SCORED_TILES key tiles, [rows][SPAN] from column 0. Where FETCHES, the tiles `ahead` are
// fetched, a line of each in every step.
template <int ROWS, bool FETCHES>
static void score(
    const uint16_t* const* queries, const uint16_t* const* keys, const uint16_t* const* ahead, int dim, float* scores) {
    constexpr int VECTORS = SCORED_TILES * KEY_VECTORS;
    Floats sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) sums[r][v] = Floats{};
    for (int pair = 0; pair < dim / 2; pair++) {
        Ints columns[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++)
            columns[v] = load<Ints>(keys[v / KEY_VECTORS] + (pair * KEY_TILE + v % KEY_VECTORS * LANES) * 2);
        if constexpr (FETCHES) {
#pragma GCC unroll 8
            for (int tile = 0; tile < SCORED_TILES; tile++) fetch(ahead[tile] + pair * KEY_TILE * 2);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            Ints row = all_of(queries[r] + 2 * pair);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sums[r][v] = dot_pairs(sums[r][v], columns[v], row);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) store(scores + r * SPAN + v * LANES, sums[r][v]);
}

// The values of an item's tiles, from slot `first` of the first tile to before slot `end` of the last. What lies outside
// belongs to nobody, may be NaN, and is never multiplied.
struct Values {
    const uint16_t* tiles[SPAN_TILES];
    int count, first, end;
};

// Sums of ROWS rows over all values, VECTORS vectors of dimensions from `column` on; out [ROWS][dim]. Beside each tile
// the one `ahead` of it is fetched, where there is one.
template <int ROWS, int VECTORS>
static void weigh(
    const uint16_t* weights, const Values& values, const uint16_t* const* ahead, int dim, int column, float* out) {
    Floats sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) sums[r][v] = Floats{};
    for (int tile = 0; tile < values.count; tile++, weights += KEY_TILE) {
        const int first = tile ? 0 : values.first, end = tile + 1 < values.count ? KEY_TILE : values.end;
        const uint16_t* from = values.tiles[tile] + (first / 2 * dim + column) * 2;
        const uint16_t* line = ahead ? ahead[tile] : nullptr;
        for (int slot = first / 2 * 2; slot < end; slot += 2, from += dim * 2) {
            const Ints seen = all((slot < first ? 0 : 0xffff) | (slot + 1 < end ? (int32_t)0xffff0000 : 0));
            if (line)
                for (int end = slot * dim + 2 * dim, at = slot * dim; at < end; at += LINE / 2) fetch(line + at);
            Ints columns[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) columns[v] = load<Ints>(from + v * LANES * 2) & seen;
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                Ints row = all_of(weights + r * SPAN + slot);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) sums[r][v] = dot_pairs(sums[r][v], columns[v], row);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) store(out + r * dim + column + v * LANES, sums[r][v]);
}

template <bool FETCHES>
CHAIRLIFT_INLINE void score_of(
    int rows, const uint16_t* const* queries, const uint16_t* const* keys, const uint16_t* const* ahead, int dim,
    float* to) {
    switch (rows) {
        case 1: return score<1, FETCHES>(queries, keys, ahead, dim, to);
        case 2: return score<2, FETCHES>(queries, keys, ahead, dim, to);
        case 3: if constexpr (ATTEND_ROWS >= 3) return score<3, FETCHES>(queries, keys, ahead, dim, to);
        case 4: if constexpr (ATTEND_ROWS >= 4) return score<4, FETCHES>(queries, keys, ahead, dim, to);
        case 5: if constexpr (ATTEND_ROWS >= 5) return score<5, FETCHES>(queries, keys, ahead, dim, to);
        case 6: if constexpr (ATTEND_ROWS >= 6) return score<6, FETCHES>(queries, keys, ahead, dim, to);
    }
}

template <int VECTORS>
CHAIRLIFT_INLINE void weigh_of(
    int rows, const uint16_t* weights, const Values& values, const uint16_t* const* ahead, int dim, int column,
    float* to) {
    constexpr int MOST = VECTORS > ATTEND_VECTORS ? WIDE_ROWS : ATTEND_ROWS;
    switch (rows) {
        case 1: return weigh<1, VECTORS>(weights, values, ahead, dim, column, to);
        case 2: return weigh<2, VECTORS>(weights, values, ahead, dim, column, to);
        case 3: if constexpr (MOST >= 3) return weigh<3, VECTORS>(weights, values, ahead, dim, column, to);
        case 4: if constexpr (MOST >= 4) return weigh<4, VECTORS>(weights, values, ahead, dim, column, to);
        case 5: if constexpr (MOST >= 5) return weigh<5, VECTORS>(weights, values, ahead, dim, column, to);
        case 6: if constexpr (MOST >= 6) return weigh<6, VECTORS>(weights, values, ahead, dim, column, to);
    }
}

// The largest score of one row, not scaled; -inf where no key is seen. Those of keys that are not seen are -inf then, and
// capped ones lie within 1.
static float peak_of(const AttendCall& call, float* scores, int begin, int width, int first, int last) {
    const bool is_whole = first <= begin && begin + width - 1 <= last, is_capped = call.softcap > 0;
    Ints position = all(begin);
    for (int lane = 0; lane < LANES; lane++) position[lane] += lane;
    for (int i = 0; i < width && (is_capped || !is_whole); i += LANES, position += LANES) {
        Floats x = load<Floats>(scores + i);
        if (is_capped) x = hyperbolic_tangent(x * call.scale / call.softcap);
        if (!is_whole) x = (position >= first) & (position <= last) ? x : all(-INFINITY);
        store(scores + i, x);
    }
    Floats most = load<Floats>(scores);
    for (int i = LANES; i < width; i += LANES) most = larger(most, load<Floats>(scores + i));
    return largest(most);
}

// Turns the scores of one row into weights, 2**((score - peak) * factor); returns their total.
static float weights_of(const float* scores, uint16_t* weights, int width, float factor, float peak) {
    const float bound = peak == -INFINITY ? 0.0f : peak;
    Floats total = {};
    for (int i = 0; i < width; i += LANES) {
        const Floats weight = power_of_two((load<Floats>(scores + i) - bound) * factor);
        total += weight;
        narrow(weights + i, weight);
    }
    return sum(total);
}

// Partial results of a row: sums over the values, the largest score, the total of the weights.
CHAIRLIFT_INLINE void join_row(float* sums, float& peak, float& total, const float* more, float new_peak, float new_total, int dim) {
    const float most = peak > new_peak || peak != peak ? peak : new_peak;
    if (most == -INFINITY) return;
    const float keep = exp2f(peak - most), take = exp2f(new_peak - most);
    for (int i = 0; i < dim; i += LANES)
        store(sums + i, fma(load<Floats>(more + i), all(take), load<Floats>(sums + i) * keep));
    total = total * keep + new_total * take;
    peak = most;
}

// The key tiles of one span that any of the rows sees. Blocks before them may be others' by now.
struct Seen {
    int first_tile, tiles, first, end;
    const uint16_t* keys[SPAN_TILES];
};

static Seen seen_of(const AttendCall& call, const AttendItem& item, int first, int last, int span) {
    Seen seen;
    seen.end = last + 1 < (span + 1) * SPAN ? last + 1 : (span + 1) * SPAN;
    seen.first = first > span * SPAN ? first : span * SPAN;
    seen.first_tile = seen.first / KEY_TILE;
    seen.tiles = (seen.end - seen.first_tile * KEY_TILE + KEY_TILE - 1) / KEY_TILE;
    find_tiles(call, item, call.cache.keys, seen.first_tile, seen.tiles, seen.keys);
    return seen;
}

// Fetches `count` lines of each tile, from line `first` on.
CHAIRLIFT_INLINE void fetch_lines(const uint16_t* const* tiles, int number, int first, int count) {
    for (int tile = 0; tile < number; tile++)
        for (int line = first; line < first + count; line++) fetch(tiles[tile] + line * LINE / 2);
}

// One span: leaves sums [rows][dim], and of each row the largest score, as an exponent of two, and the total of its
// weights. With few rows it is memory that takes long. For one or two the processor fetches ahead by itself, better than
// we do; only the first lines of the values are fetched, while weights are made and nothing else is read. For some more,
// values are fetched while keys are read, and while values are read the keys of the span that comes `next`: ADR 0025.
static void attend_span(
    const AttendCall& call, const AttendItem& item, const Asking& asking, const Seen& seen, const Seen& next,
    float* sums, float* peaks, float* totals) {
    const int dim = call.cache.head_dim, rows = asking.count, begin = seen.first_tile * KEY_TILE;
    const int width = seen.tiles * KEY_TILE;
    const float factor = (call.softcap > 0 ? call.softcap : call.scale) * LOG2_E;
    alignas(64) float scores[MAX_ITEM_ROWS * SPAN];
    alignas(64) uint16_t weights[MAX_ITEM_ROWS * SPAN];
    Values values = {{}, seen.tiles, seen.first - begin, seen.end - begin - (seen.tiles - 1) * KEY_TILE};
    find_tiles(call, item, call.cache.values, seen.first_tile, seen.tiles, values.tiles);
    const int groups = (rows + ATTEND_ROWS - 1) / ATTEND_ROWS;
    const bool is_left_alone = rows <= WIDE_ROWS, is_fetched = groups == 1 && !is_left_alone;
    for (int tile = 0; tile < seen.tiles; tile += SCORED_TILES)
        for (int group = 0, r = 0, count; group < groups; group++, r += count) {
            count = rows / groups + (group < rows % groups);
            const uint16_t *const *keys = seen.keys + tile, *const *ahead = values.tiles + tile;
            float* to = scores + r * SPAN + tile * KEY_TILE;
            if (is_fetched)
                score_of<true>(count, asking.queries + r, keys, ahead, dim, to);
            else
                score_of<false>(count, asking.queries + r, keys, ahead, dim, to);
        }
    for (int r = 0; r < rows; r++) {
        if (is_left_alone) fetch_lines(values.tiles, seen.tiles, r * LINES_FETCHED, LINES_FETCHED);
        peaks[r] = peak_of(call, scores + r * SPAN, begin, width, asking.first[r], asking.last[r]);
    }
    for (int r = 0; r < rows; r++) {
        totals[r] = weights_of(scores + r * SPAN, weights + r * SPAN, width, factor, peaks[r]);
        peaks[r] *= factor;
    }
    const uint16_t* ahead[SPAN_TILES];
    for (int tile = 0; tile < seen.tiles; tile++) ahead[tile] = tile < next.tiles ? next.keys[tile] : nullptr;
    for (int group = 0, r = 0, count; group < groups; group++, r += count) {
        count = rows / groups + (group < rows % groups);
        for (int column = 0, taken; column < dim; column += taken) {
            const int left = (dim - column) / LANES;
            const int vectors = count <= WIDE_ROWS && left >= WIDE_VECTORS ? WIDE_VECTORS
                              : left >= ATTEND_VECTORS                     ? ATTEND_VECTORS
                                                                           : 1;
            taken = vectors * LANES;
            const uint16_t* const* fetched = is_fetched && column == 0 ? ahead : nullptr;
            if (vectors == WIDE_VECTORS)
                weigh_of<WIDE_VECTORS>(count, weights + r * SPAN, values, fetched, dim, column, sums + r * dim);
            else if (vectors == ATTEND_VECTORS)
                weigh_of<ATTEND_VECTORS>(count, weights + r * SPAN, values, fetched, dim, column, sums + r * dim);
            else
                weigh_of<1>(count, weights + r * SPAN, values, fetched, dim, column, sums + r * dim);
        }
    }
}

static Asking asking_of(const AttendCall& call, const AttendItem& item) {
    const int shared = call.heads / call.cache.kv_heads, dim = call.cache.head_dim;
    const int begin = call.cu_q[item.sequence], end = call.cu_q[item.sequence + 1];
    Asking asking;
    asking.count = item.row_count;
    for (int i = 0; i < item.row_count; i++) {
        const int token = begin + (item.first_row + i) / shared, head = (item.first_row + i) % shared;
        asking.queries[i] = call.queries + token * call.queries_stride + (item.kv_head * shared + head) * dim;
        asking.last[i] = call.seq_lens[item.sequence] - (end - token);
        asking.first[i] = call.window && asking.last[i] >= call.window ? asking.last[i] - call.window + 1 : 0;
    }
    return asking;
}

static void begin_row(const AttendCall& call, const AttendItem& item, int row, float* sums, float& peak, float& total) {
    const int shared = call.heads / call.cache.kv_heads;
    for (int i = 0; i < call.cache.head_dim; i++) sums[i] = 0.0f;
    peak = call.sinks ? LOG2_E * call.sinks[item.kv_head * shared + (item.first_row + row) % shared] : -INFINITY;
    total = call.sinks ? 1.0f : 0.0f;
}

static void end_row(const AttendCall& call, const AttendItem& item, int row, const float* sums, float total) {
    const int shared = call.heads / call.cache.kv_heads, dim = call.cache.head_dim;
    const int token = call.cu_q[item.sequence] + (item.first_row + row) / shared;
    const int head = item.kv_head * shared + (item.first_row + row) % shared;
    const size_t place = token * call.out_stride + head * dim;
    const float inverse = 1.0f / total;
    for (int i = 0; i < dim; i += LANES) {
        const Floats value = load<Floats>(sums + i) * inverse;
        if (call.to_floats)
            store((float*)call.out + place + i, value);
        else
            narrow((uint16_t*)call.out + place + i, value);
    }
}

static void attend(const AttendCall& call, const AttendItem& item, const AttendItem* after) {
    const int dim = call.cache.head_dim;
    const Asking asking = asking_of(call, item);
    Seen seen = seen_of(call, item, asking.lowest(), asking.highest(), item.first_span), next;
    alignas(64) float sums[MAX_ITEM_ROWS * MAX_HEAD_DIM], joined[MAX_ITEM_ROWS * MAX_HEAD_DIM];
    float peaks[MAX_ITEM_ROWS], totals[MAX_ITEM_ROWS], joined_peaks[MAX_ITEM_ROWS], joined_totals[MAX_ITEM_ROWS];
    const bool is_whole = item.partial < 0;
    for (int r = 0; is_whole && r < asking.count; r++)
        begin_row(call, item, r, joined + r * dim, joined_peaks[r], joined_totals[r]);
    for (int i = 0; i < item.span_count; i++) {
        next.tiles = 0;
        if (i + 1 < item.span_count)
            next = seen_of(call, item, asking.lowest(), asking.highest(), item.first_span + i + 1);
        else if (after) {
            const Asking others = asking_of(call, *after);
            next = seen_of(call, *after, others.lowest(), others.highest(), after->first_span);
        }
        attend_span(call, item, asking, seen, next, sums, peaks, totals);
        seen = next;
        for (int r = 0; r < asking.count; r++) {
            if (is_whole) {
                join_row(
                    joined + r * dim, joined_peaks[r], joined_totals[r], sums + r * dim, peaks[r], totals[r], dim);
                continue;
            }
            float* to = call.partials + ((size_t)item.partial + i * asking.count + r) * (dim + 2);
            memcpy(to, sums + r * dim, dim * sizeof(float));
            to[dim] = peaks[r], to[dim + 1] = totals[r];
        }
    }
    for (int r = 0; is_whole && r < asking.count; r++) end_row(call, item, r, joined + r * dim, joined_totals[r]);
}

static void join(const AttendCall& call, const AttendItem& item, int spans) {
    const int dim = call.cache.head_dim;
    alignas(64) float sums[MAX_HEAD_DIM];
    float peak, total;
    for (int r = 0; r < item.row_count; r++) {
        begin_row(call, item, r, sums, peak, total);
        for (int span = 0; span < spans; span++) {
            const float* from = call.partials + ((size_t)item.partial + span * item.row_count + r) * (dim + 2);
            join_row(sums, peak, total, from, from[dim], from[dim + 1], dim);
        }
        end_row(call, item, r, sums, total);
    }
}

}  // namespace chairlift::CHAIRLIFT_SET
