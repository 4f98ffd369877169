// Products by the kinds with groups, whose integer sums are those of a group or of a half of one.
//
// A tile unpacks the codes of less than 8 bits that it multiplies. Where many tiles of rows are multiplied by the same
// range of steps, codes and scales are unpacked once for all of them (UnpackedRange): the same numbers, the same bits.
#pragma once

#include "dot.h"
#include "kernels.h"
#include "simd.h"
#include "tiles.h"

namespace chairlift::CHAIRLIFT_SET {

// The scales and minima of LANES outputs in each group.
template <WeightKind KIND>
struct GroupScales {
    const uint16_t *scales, *minima;
    const int8_t *small_scales, *small_minima;

    CHAIRLIFT_INLINE GroupScales(const Weight& weight, int panel, int column) {
        const size_t groups = (size_t)panel * weight.groups();
        const size_t first = (has_super_scales(KIND) ? groups / SUPER_GROUPS : groups) * PANEL + column;
        scales = weight.group_scales + first;
        if constexpr (has_minima(KIND)) minima = weight.group_minima + first;
        if constexpr (has_super_scales(KIND)) {
            small_scales = weight.small_scales + groups * scales_per_group(KIND) * PANEL + column;
            if constexpr (has_minima(KIND)) small_minima = weight.small_minima + groups * PANEL + column;
        }
    }

    // Returns one of the scales of a group.
    CHAIRLIFT_INLINE Floats scale(int group, int number, int vector) const {
        constexpr int COUNT = scales_per_group(KIND);
        const uint16_t* from = at(scales, group, vector);
        if constexpr (has_bf16_scales(KIND)) return bf16_to_f32(from);
        const Floats factor = f16_to_f32((const Float16*)from);
        if constexpr (!has_super_scales(KIND)) return factor;
        return factor * small(small_scales, group * COUNT + number, vector);
    }

    CHAIRLIFT_INLINE Floats minimum(int group, int vector) const {
        const Floats factor = f16_to_f32((const Float16*)at(minima, group, vector));
        if constexpr (!has_super_scales(KIND)) return factor;
        return factor * small(small_minima, group, vector);
    }

    // Prefetches the numbers of a group AHEAD of this one, which may be in the next panel.
    template <int VECTORS>
    CHAIRLIFT_INLINE void prefetch_ahead(int group) const {
        constexpr int AHEAD = 12, PER_LINE = LINE / (sizeof(uint16_t) * LANES);  // vectors
        group += AHEAD;
        if (!has_super_scales(KIND) || group % SUPER_GROUPS == 0)
            for (int vector = 0; vector < VECTORS; vector += PER_LINE) {
                prefetch((const uint8_t*)at(scales, group, vector));
                if constexpr (has_minima(KIND)) prefetch((const uint8_t*)at(minima, group, vector));
            }
        if constexpr (has_super_scales(KIND)) {
            for (int number = 0; number < scales_per_group(KIND); number++)
                prefetch((const uint8_t*)(small_scales + (size_t)(group * scales_per_group(KIND) + number) * PANEL));
            if constexpr (has_minima(KIND)) prefetch((const uint8_t*)(small_minima + (size_t)group * PANEL));
        }
    }

private:
    static CHAIRLIFT_INLINE const uint16_t* at(const uint16_t* first, int group, int vector) {
        return first + (size_t)(has_super_scales(KIND) ? group / SUPER_GROUPS : group) * PANEL + vector * LANES;
    }

    static CHAIRLIFT_INLINE Floats small(const int8_t* first, int index, int vector) {
        return int8_to_f32(first + (size_t)index * PANEL + vector * LANES);
    }
};

// One group of LANES outputs a vector, as it is packed: what a tile multiplies by.
template <WeightKind KIND>
struct PackedGroup {
    const uint8_t* data;
    const GroupScales<KIND>& scales;
    int group;

    CHAIRLIFT_INLINE typename Dot<GroupNumbers<KIND>>::Column column(int vector, int quad) const {
        return Dot<GroupNumbers<KIND>>::column(group_words<KIND>(data, vector, quad), 0);
    }
    CHAIRLIFT_INLINE Floats scale(int number, int vector) const { return scales.scale(group, number, vector); }
    CHAIRLIFT_INLINE Floats minimum(int vector) const { return scales.minimum(group, vector); }
};

// Whether the kind is unpacked where many tiles are multiplied range by range. With AVX-512 a tile unpacks on ports that
// the products leave free.
constexpr bool is_unpacked(WeightKind kind) { return LANES == 8 && has_few_variants(kind); }

// A range of steps of half a panel with one byte for each code: what many tiles multiply by.
struct UnpackedRange {
    alignas(64) uint8_t words[RANGE_GROUPS * GROUP * HALF_PANEL];  // [groups][quads][half panel][4]
    alignas(64) float scales[RANGE_GROUPS * 2 * HALF_PANEL];       // [groups][scales of a group][half panel]
    alignas(64) float minima[RANGE_GROUPS * HALF_PANEL];           // [groups][half panel]

    template <WeightKind KIND>
    void unpack(const Weight& weight, int panel, int column, const StepRange& range) {
        constexpr int STEPS = code_bits(KIND), COUNT = scales_per_group(KIND);
        const GroupScales<KIND> packed(weight, panel, column);
        const uint8_t* data = weight.data + panel * weight.panel_bytes() + (size_t)range.begin * STEP_BYTES + column * 4;
        for (int group = 0; group < (range.end - range.begin) / STEPS; group++, data += STEPS * STEP_BYTES) {
            const int from = range.begin / STEPS + group;
            for (int v = 0; v < HALF_VECTORS; v++) {
#pragma GCC unroll 8
                for (int quad = 0; quad < QUADS; quad++)
                    store(words + ((group * QUADS + quad) * HALF_VECTORS + v) * sizeof(Ints),
                          group_words<KIND>(data, v, quad));
#pragma GCC unroll 2
                for (int number = 0; number < COUNT; number++)
                    store(scales + ((group * COUNT + number) * HALF_VECTORS + v) * LANES,
                          packed.scale(from, number, v));
                if constexpr (has_minima(KIND))
                    store(minima + (group * HALF_VECTORS + v) * LANES, packed.minimum(from, v));
            }
        }
    }
};

// A group of an UnpackedRange; `first` is the first of the tile's vectors.
template <WeightKind KIND>
struct UnpackedGroup {
    const UnpackedRange& range;
    int group, first;

    CHAIRLIFT_INLINE typename Dot<GroupNumbers<KIND>>::Column column(int vector, int quad) const {
        const size_t at = (group * QUADS + quad) * HALF_VECTORS + first + vector;
        return Dot<GroupNumbers<KIND>>::column(load<Ints>(range.words + at * sizeof(Ints)), 0);
    }
    CHAIRLIFT_INLINE Floats scale(int number, int vector) const {
        const size_t at = (group * scales_per_group(KIND) + number) * HALF_VECTORS + first + vector;
        return load<Floats>(range.scales + at * LANES);
    }
    CHAIRLIFT_INLINE Floats minimum(int vector) const {
        return load<Floats>(range.minima + (group * HALF_VECTORS + first + vector) * LANES);
    }
};

// Adds the products of COUNT quads of a group of codes of less than 8 bits, from quad FIRST on, to integer sums.
template <WeightKind KIND, typename Prefetch, int FIRST, int COUNT, int ROWS, int VECTORS, typename Group>
CHAIRLIFT_INLINE void accumulate_quads(
    Ints (&sums)[ROWS][VECTORS], const uint8_t* rows, size_t stride, const Group& group, const uint8_t* ahead) {
    using Numbers = GroupNumbers<KIND>;
    constexpr int BITS = code_bits(KIND);
    constexpr bool SUMS_PAIRS = std::is_same_v<Numbers, Code> && Dot<Code>::SUMS_PAIRS;
    // Of several rows, few sums of pairs at a time leave registers to the others.
    constexpr int MOST = ROWS > 1 ? 2 : Dot<Code>::max_quads(BITS);
    constexpr int AT_ONCE = SUMS_PAIRS && MOST < COUNT ? MOST : COUNT;
#pragma GCC unroll 8
    for (int begin = FIRST; begin < FIRST + COUNT; begin += AT_ONCE) {
        Ints pairs[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) pairs[r][v] = SUMS_PAIRS ? Ints{} : sums[r][v];
#pragma GCC unroll 8
        for (int quad = begin; quad < begin + AT_ONCE; quad++) {
            // The lines of BITS steps in QUADS quads.
#pragma GCC unroll 4
            for (int line = quad * BITS / QUADS * Prefetch::LINES; line < (quad + 1) * BITS / QUADS * Prefetch::LINES;
                 line++)
                prefetch(ahead + line * LINE);
            typename Dot<Numbers>::Column columns[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) columns[v] = group.column(v, quad);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const Ints row = broadcast_word(rows + r * stride + quad * 4);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) pairs[r][v] = Dot<Numbers>::add(pairs[r][v], columns[v], row);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                if constexpr (SUMS_PAIRS)
                    sums[r][v] += Dot<Code>::widen(pairs[r][v]);
                else
                    sums[r][v] = pairs[r][v];
    }
}

// Adds the products of one part of a group, which has a scale of its own, to the sums.
template <WeightKind KIND, typename Prefetch, int PART, int ROWS, int VECTORS, typename Group>
CHAIRLIFT_INLINE void multiply_part(
    Floats (&sums)[ROWS][VECTORS], const int32_t (&row_sums)[ROWS], const float (&row_scales)[ROWS],
    const uint8_t* rows, size_t stride, const Group& group, const uint8_t* ahead) {
    constexpr int COUNT = QUADS / scales_per_group(KIND);
    Ints int_sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) int_sums[r][v] = broadcast(group_start<KIND>(row_sums[r]));
    if constexpr (code_bits(KIND) == 8)
        accumulate<Int8, Prefetch>(int_sums, rows, stride, group.data, QUADS, ahead);
    else
        accumulate_quads<KIND, Prefetch, PART * COUNT, COUNT>(int_sums, rows, stride, group, ahead);
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) {
        const Floats scale = group.scale(PART, v);
        if constexpr (has_minima(KIND)) {
            const Floats minimum = group.minimum(v);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const float row_sum = (float)row_sums[r] * (1.0f / 128.0f);  // with a minus
                const Floats shifted = fma(minimum, broadcast(row_sum), to_floats(int_sums[r][v]) * scale);
                sums[r][v] = fma(shifted, broadcast(row_scales[r]), sums[r][v]);
            }
        } else {
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
                sums[r][v] = fma(to_floats(int_sums[r][v]), scale * row_scales[r], sums[r][v]);
        }
    }
}

// multiply() of linear.h for the kinds with groups. `unpacked` has the range, or is null.
template <WeightKind KIND, bool IS_UNPACKED, typename Prefetch, int ROWS, int VECTORS>
CHAIRLIFT_INLINE void multiply_groups(
    Floats (&sums)[ROWS][VECTORS], const LinearCall& call, int first, int panel, int column, const StepRange& range,
    [[maybe_unused]] const UnpackedRange* unpacked, const uint8_t* ahead) {
    constexpr int STEPS = code_bits(KIND);
    const Weight& weight = *call.weight;
    const int groups = weight.groups(), begin = range.begin / STEPS, end = range.end / STEPS;
    [[maybe_unused]] const GroupScales<KIND> scales(weight, panel, column);
    const uint8_t* data = weight.data + panel * weight.panel_bytes() + (size_t)range.begin * STEP_BYTES + column * 4;
    const uint8_t* rows = call.rows.data + first * call.rows.stride + (size_t)begin * GROUP;
    for (int group = begin; group < end; group++) {
        if constexpr (Prefetch::LINES > 1) scales.template prefetch_ahead<VECTORS>(group);
        int32_t row_sums[ROWS], half_sums[ROWS];
        float row_scales[ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            const size_t row = first + r;
            row_scales[r] = call.rows.scales[row * groups + group];
            row_sums[r] = call.rows.sums[row * sums_of_groups(groups) + group];
            if constexpr (scales_per_group(KIND) == 2) {
                half_sums[r] = call.rows.sums[row * sums_of_groups(groups) + groups + group];
                row_sums[r] -= half_sums[r];
            }
        }
        const auto multiply_by = [&](const auto& columns) __attribute__((always_inline)) {
            if constexpr (scales_per_group(KIND) == 2) {
                multiply_part<KIND, Prefetch, 0>(
                    sums, half_sums, row_scales, rows, call.rows.stride, columns, ahead);
                multiply_part<KIND, Prefetch, 1>(sums, row_sums, row_scales, rows, call.rows.stride, columns, ahead);
            } else {
                multiply_part<KIND, Prefetch, 0>(sums, row_sums, row_scales, rows, call.rows.stride, columns, ahead);
            }
        };
        if constexpr (IS_UNPACKED)
            multiply_by(UnpackedGroup<KIND>{*unpacked, group - begin, column % HALF_PANEL / LANES});
        else
            multiply_by(PackedGroup<KIND>{data, scales, group});
        rows += GROUP, data += STEPS * STEP_BYTES, ahead += Prefetch::bytes(STEPS);
    }
}

}  // namespace chairlift::CHAIRLIFT_SET
