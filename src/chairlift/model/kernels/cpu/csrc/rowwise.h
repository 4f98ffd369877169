// Row-wise kernels: embedding, norms, quantization, and rotary embedding with the write to the KV cache.
#pragma once

#include <cmath>

#include "kernels.h"
#include "linear.h"
#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

// Returns the code of an input of a group; `bytes`: its byte in the first step of the group.
static int unpack_code(const uint8_t* bytes, int quad, int bits) {
    if (bits == 8) return bytes[quad * STEP_BYTES];
    const int low = bytes[quad / 2 * STEP_BYTES] >> quad % 2 * 4 & 15;
    if (bits == 5) return low | (bytes[4 * STEP_BYTES] >> quad & 1) << 4;
    if (bits == 6) return low | (bytes[(4 + quad / 4) * STEP_BYTES] >> quad % 4 * 2 & 3) << 4;
    return low;
}

// Returns a scale or minimum of a weight with groups: `index` counts those of the panel, `per_group` in each group.
static float unpack_scale(
    const Weight& weight, const uint16_t* numbers, const int8_t* small, int panel, int column, int index,
    int per_group) {
    const int groups = weight.groups(), group = index / per_group;
    const auto at = [=](int count, int i) { return ((size_t)panel * count + i) * PANEL + column; };
    if (has_bf16_scales(weight.kind)) return bf16_to_f32(numbers[at(groups, group)]);
    if (!has_super_scales(weight.kind)) return f16_to_f32(Float16{numbers[at(groups, group)]});
    return f16_to_f32(Float16{numbers[at(groups / SUPER_GROUPS, group / SUPER_GROUPS)]}) *
           small[at(groups * per_group, index)];
}

// Returns one weight of a packed table.
static float unpack_weight(const Weight& weight, int output, int input) {
    const int panel = output / PANEL, column = output % PANEL;
    const WeightKind kind = weight.kind;
    const uint8_t* data = weight.data + panel * weight.panel_bytes();
    if (has_groups(kind)) {
        const int group = input / GROUP, bits = code_bits(kind), per_group = scales_per_group(kind);
        const uint8_t* bytes = data + (size_t)group * bits * STEP_BYTES + column * 4 + input % 4;
        const int code = unpack_code(bytes, input % GROUP / 4, bits);
        const float scale = unpack_scale(
            weight, weight.group_scales, weight.small_scales, panel, column, input * per_group / GROUP, per_group);
        if (has_minima(kind))
            return code * scale -
                   unpack_scale(weight, weight.group_minima, weight.small_minima, panel, column, group, 1);
        return ((has_table(kind) ? code_table(kind)[code] - 128 : code - code_offset(kind))) * scale;
    }
    const int per_step = inputs_per_step(kind);
    const uint8_t* step = data + (size_t)(input / per_step) * STEP_BYTES;
    if (kind == FLOAT32) return ((const float*)step)[column];
    if (kind == FLOAT16) return f16_to_f32(((const Float16*)step)[input % 2 * PANEL + column]);
    if (kind == BFLOAT16) return bf16_to_f32(((const Bfloat16*)step)[column * 2 + input % 2]);
    return (step[column * 4 + input % 4] - 128) * weight.scales[output];
}

CHAIRLIFT_INLINE Floats load_f32(const uint16_t* in) { return bf16_to_f32(in); }
CHAIRLIFT_INLINE Floats load_f32(const float* in) { return load<Floats>(in); }
CHAIRLIFT_INLINE float to_f32(uint16_t in) { return bf16_to_f32(in); }
CHAIRLIFT_INLINE float to_f32(float in) { return in; }
CHAIRLIFT_INLINE float to_f32(Float16 in) { return f16_to_f32(in); }

template <typename Number>
static void embed_row(const EmbedCall& call, const Number* from, float* out) {
    for (int i = 0; i < call.width; i++) out[i] = to_f32(from[i]) * call.factor;
}

static void embed(const EmbedCall& call, int begin, int end) {
    for (int row = begin; row < end; row++) {
        const int64_t id = call.ids[row];
        float* out = call.out + row * call.out_stride;
        if (!call.table)
            for (int i = 0; i < call.width; i++) out[i] = unpack_weight(*call.packed, (int)id, i) * call.factor;
        else if (call.table_kind == FLOAT32)
            embed_row(call, (const float*)call.table + id * call.width, out);
        else if (call.table_kind == FLOAT16)
            embed_row(call, (const Float16*)call.table + id * call.width, out);
        else
            embed_row(call, (const Bfloat16*)call.table + id * call.width, out);
    }
}

// Returns 1 / sqrt(mean of squares + eps) of `width` numbers.
template <class In>
CHAIRLIFT_INLINE float inverse_rms(const In* in, int width, float eps) {
    Floats squares = {};
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        Floats x = load_f32(in + i);
        squares = fma(x, x, squares);
    }
    float total = reduce_sum(squares);
    for (; i < width; i++) total += to_f32(in[i]) * to_f32(in[i]);
    return 1.0f / sqrtf(total / width + eps);
}

template <class In>
CHAIRLIFT_INLINE void convert_row(const NormCall& call, const In* in, int row) {
    if (call.mode == NORM_BF16) {
        uint16_t* out = (uint16_t*)call.out + row * call.out_stride;
        for (int i = 0; i < call.width; i++) out[i] = f32_to_bf16(to_f32(in[i]));
    } else {
        float* out = (float*)call.out + row * call.out_stride;
        for (int i = 0; i < call.width; i++)
            out[i] = call.mode == NORM_ADD ? (out[i] + to_f32(in[i])) * call.factor : to_f32(in[i]);
    }
}

template <class In>
CHAIRLIFT_INLINE void norm_row(const NormCall& call, const In* in, int row) {
    if (!call.weight) return convert_row(call, in, row);
    const float inverse = inverse_rms(in, call.width, call.eps);
    int i = 0;
    if (call.mode == NORM_BF16) {
        uint16_t* out = (uint16_t*)call.out + row * call.out_stride;
        for (; i + LANES <= call.width; i += LANES)
            store_bf16(out + i, load_f32(in + i) * inverse * load<Floats>(call.weight + i));
        for (; i < call.width; i++) out[i] = f32_to_bf16(to_f32(in[i]) * inverse * call.weight[i]);
    } else {
        const bool adds = call.mode == NORM_ADD;
        float* out = (float*)call.out + row * call.out_stride;
        for (; i + LANES <= call.width; i += LANES) {
            Floats normed = load_f32(in + i) * inverse * load<Floats>(call.weight + i);
            store(out + i, adds ? (load<Floats>(out + i) + normed) * call.factor : normed);
        }
        for (; i < call.width; i++) {
            const float normed = to_f32(in[i]) * inverse * call.weight[i];
            out[i] = adds ? (out[i] + normed) * call.factor : normed;
        }
    }
}

template <class In>
static void norm_rows(const NormCall& call, int begin, int end) {
    for (int row = begin; row < end; row++) norm_row(call, (const In*)call.in + row * call.in_stride, row);
}

static void norm(const NormCall& call, int begin, int end) {
    return call.in_is_bf16 ? norm_rows<uint16_t>(call, begin, end) : norm_rows<float>(call, begin, end);
}

// Quantizes one group, or a whole row with one scale: int8 = round(x / scale), scale = max |x| / 127. A NaN or infinity
// makes the scale NaN, so that it reaches the outputs of the row. half_total: for the first half of a group, or null.
template <class In>
CHAIRLIFT_INLINE void quantize_group(
    const In* in, int width, int8_t* out, float* scale, int32_t* total, int32_t* half_total) {
    Floats max_values = {}, zero_products = {};
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        Floats x = load_f32(in + i);
        max_values = maximum(max_values, x > 0.0f ? x : -x);
        zero_products += x * 0.0f;
    }
    float max_abs = reduce_max(max_values), nonfinite = reduce_sum(zero_products);
    for (; i < width; i++) {
        float x = fabsf(to_f32(in[i]));
        max_abs = x > max_abs ? x : max_abs, nonfinite += x * 0.0f;
    }
    *scale = nonfinite == 0.0f ? max_abs / 127.0f : NAN;
    const float inverse = nonfinite == 0.0f && max_abs > 0.0f ? 127.0f / max_abs : 0.0f;
    Ints sums = {};
    int32_t tail_sum = 0;
    for (i = 0; i + LANES <= width && nonfinite == 0.0f; i += LANES) {
        Ints values = round_to_ints(load_f32(in + i) * inverse);
        sums += values;
        store(out + i, __builtin_convertvector(values, Bytes));
    }
    for (; i < width; i++) {
        int32_t value = nonfinite == 0.0f ? (int32_t)rintf(to_f32(in[i]) * inverse) : 0;
        out[i] = (int8_t)value, tail_sum += value;
    }
    *total = -128 * (tail_sum + reduce_sum(sums));
    if (!half_total) return;
    int32_t half = 0;
    for (i = 0; i < GROUP / 2; i++) half += nonfinite == 0.0f ? out[i] : 0;
    *half_total = -128 * half;
}

// Quantizes LANES groups at once, without one reduction over lanes per group.
template <class In>
CHAIRLIFT_INLINE void quantize_groups(
    const In* in, int8_t* out, float* scales, int32_t* totals, int32_t* half_totals) {
    constexpr int VECTORS = GROUP / LANES;
    Ints max_bits[LANES], sums[LANES], half_sums[LANES];
    for (int group = 0; group < LANES; group++) {
        max_bits[group] = Ints{};
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {  // as integers: NaN > infinity > all numbers
            const Ints size = (Ints)load_f32(in + group * GROUP + v * LANES) & 0x7fffffff;
            max_bits[group] = size > max_bits[group] ? size : max_bits[group];
        }
    }
    const Ints bits = reduce_lanes(max_bits, [](Ints a, Ints b) { return a > b ? a : b; });
    const Floats max_abs = as_floats(bits);
    const Ints nonfinite = bits >= 0x7f800000;
    store(scales, nonfinite ? broadcast(NAN) : max_abs / 127.0f);
    alignas(64) float inverses[LANES];
    alignas(64) int32_t finite_masks[LANES];
    store(inverses, nonfinite | (bits == 0) ? Floats{} : 127.0f / max_abs);
    store(finite_masks, ~nonfinite);
    for (int group = 0; group < LANES; group++) {
        const Floats inverse = broadcast(inverses[group]);
        sums[group] = Ints{};
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            const int at = group * GROUP + v * LANES;
            const Ints values = round_to_ints(load_f32(in + at) * inverse) & finite_masks[group];
            sums[group] += values;
            if (v + 1 == VECTORS / 2) half_sums[group] = sums[group];
            store(out + at, __builtin_convertvector(values, Bytes));
        }
    }
    const auto add = [](Ints a, Ints b) { return a + b; };
    store(totals, -128 * reduce_lanes(sums, add));
    store(half_totals, -128 * reduce_lanes(half_sums, add));
}

template <class In>
CHAIRLIFT_INLINE void quantize_rows(const QuantizeCall& call, const In* in, int begin, int end) {
    const int num_groups = call.width / GROUP;
    for (int row = begin; row < end; row++) {
        const In* from = in + row * call.in_stride;
        int8_t* to = call.out + row * call.out_stride;
        if (call.kind != INT8_GROUP) {
            quantize_group(from, call.width, to, call.scales + row, call.sums + row, nullptr);
            continue;
        }
        float* scales = call.scales + (size_t)row * num_groups;
        int32_t* sums = call.sums + (size_t)row * sums_of_groups(num_groups);
        int i = 0;
        for (; i + LANES <= num_groups; i += LANES)
            quantize_groups(from + i * GROUP, to + i * GROUP, scales + i, sums + i, sums + num_groups + i);
        for (; i < num_groups; i++)
            quantize_group(from + i * GROUP, GROUP, to + i * GROUP, scales + i, sums + i, sums + num_groups + i);
    }
}

static void quantize(const QuantizeCall& call, int begin, int end) {
    if (call.in_is_f32)
        quantize_rows(call, (const float*)call.in, begin, end);
    else
        quantize_rows(call, (const uint16_t*)call.in, begin, end);
}

static void sum_experts(const ExpertSum& call, int begin, int end) {
    for (int row = begin; row < end; row++) {
        const size_t first = (size_t)row * call.experts_per_row;
        const float* factors = call.factors + first;
        const float* shared = call.shared ? call.shared + row * call.shared_stride : nullptr;
        const float gate = call.gates ? 1.0f / (1.0f + expf(-call.gates[row * call.gates_stride])) : 1.0f;
        float* out = call.out + row * call.out_stride;
        const auto at = [&](int rank) { return call.outputs + call.places[first + rank] * call.outputs_stride; };
        int i = 0;
        for (; i + LANES <= call.width; i += LANES) {
            Floats total = load<Floats>(at(0) + i) * factors[0];
            for (int rank = 1; rank < call.experts_per_row; rank++)
                total += load<Floats>(at(rank) + i) * factors[rank];
            if (shared) total += load<Floats>(shared + i) * gate;
            total *= call.factor;
            store(out + i, call.adds ? load<Floats>(out + i) + total : total);
        }
        for (; i < call.width; i++) {
            float total = at(0)[i] * factors[0];
            for (int rank = 1; rank < call.experts_per_row; rank++) total += at(rank)[i] * factors[rank];
            if (shared) total += shared[i] * gate;
            total *= call.factor;
            out[i] = call.adds ? out[i] + total : total;
        }
    }
}

template <class Number>
static void multiply_rows_by_gate(const GateCall& call, int begin, int end) {
    for (int row = begin; row < end; row++) {
        const float* gate = call.gate + row * call.gate_stride;
        Number* out = (Number*)call.out + row * call.out_stride;
        for (int i = 0; i < call.width; i++) {
            const float product = to_f32(out[i]) / (1.0f + expf(-gate[i]));
            if constexpr (sizeof(Number) == sizeof(float))
                out[i] = product;
            else
                out[i] = f32_to_bf16(product);
        }
    }
}

static void multiply_by_gate(const GateCall& call, int begin, int end) {
    if (call.out_is_f32)
        multiply_rows_by_gate<float>(call, begin, end);
    else
        multiply_rows_by_gate<uint16_t>(call, begin, end);
}

template <class Number>
static void multiply_activated_rows(const ActivationCall& call, int begin, int end) {
    for (int row = begin; row < end; row++) {
        const float *gate = call.gate + row * call.gate_stride, *up = call.up + row * call.up_stride;
        Number* out = (Number*)call.out + row * call.out_stride;
        int i = 0;
        for (; i + LANES <= call.width; i += LANES)
            store_rounded(out + i, activate(load<Floats>(gate + i), call.activation) * load<Floats>(up + i));
        Floats gates = {}, ups = {};
        for (int lane = 0; lane < call.width - i; lane++) gates[lane] = gate[i + lane], ups[lane] = up[i + lane];
        const Floats products = activate(gates, call.activation) * ups;
        for (int lane = 0; lane < call.width - i; lane++) store_rounded(out + i + lane, products[lane]);
    }
}

static void multiply_activated(const ActivationCall& call, int begin, int end) {
    if (call.out_is_f32)
        multiply_activated_rows<float>(call, begin, end);
    else
        multiply_activated_rows<Bfloat16>(call, begin, end);
}

// Computes one query or key head: norm (if the model has one), factor, rotary embedding, rounding to the cache's
// numbers. inverse: 1 / root mean square, where one is of all heads together.
template <typename Number>
static void rotate(
    const RopeCacheCall& call, const float* in, const float* norm, float inverse, float scale, int64_t position,
    Number* out) {
    const int half = call.cache.head_dim / 2;
    const float* cosines = call.cosines + position * half;
    const float* sines = call.sines + position * half;
    if (norm && !call.norm_is_joint) inverse = inverse_rms(in, 2 * half, call.eps);
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        Floats left = load<Floats>(in + i), right = load<Floats>(in + half + i);
        if (norm) {
            left = left * inverse * load<Floats>(norm + i);
            right = right * inverse * load<Floats>(norm + half + i);
        }
        if (scale != 1.0f) left = left * scale, right = right * scale;
        Floats cosine = load<Floats>(cosines + i), sine = load<Floats>(sines + i);
        store_rounded(out + i, fma(left, cosine, -(right * sine)));
        store_rounded(out + half + i, fma(right, cosine, left * sine));
    }
    for (; i < half; i++) {
        float left = in[i], right = in[half + i];
        if (norm) left = left * inverse * norm[i], right = right * inverse * norm[half + i];
        left *= scale, right *= scale;
        store_rounded(out + i, left * cosines[i] - right * sines[i]);
        store_rounded(out + half + i, right * cosines[i] + left * sines[i]);
    }
}

template <typename Number>
static void rope_cache_of(const RopeCacheCall& call, int begin, int end) {
    const KVCache& cache = call.cache;
    const int width = cache.head_dim;
    for (int row = begin; row < end; row++) {
        const float* in = call.in + row * call.in_stride;
        Number* queries = (Number*)call.queries + row * call.queries_stride;
        const int64_t position = call.positions[row], slot = call.slot_mapping[row];
        const int num_queries = call.num_heads * width;
        const float scale = call.query_scales ? call.query_scales[position] : 1.0f;
        float inverse = call.norm_is_joint ? inverse_rms(in, num_queries, call.eps) : 1.0f;
        for (int head = 0; head < call.num_heads; head++)
            rotate(
                call, in + head * width, call.norm ? call.norm + head * width : nullptr, inverse, scale, position,
                queries + head * width);
        // Queries are needed also where keys and values are not written, as in a warm-up.
        if (slot < 0 || !call.num_keys) continue;
        const int offset = slot % cache.block_size;
        Number* keys = (Number*)cache.keys + slot / cache.block_size * cache.block_elements;
        Number* values = (Number*)cache.values + slot / cache.block_size * cache.block_elements;
        if (call.norm_is_joint) inverse = inverse_rms(in + num_queries, call.num_keys * width, call.eps);
        for (int head = 0; head < call.num_keys; head++) {
            const int key_head = call.num_heads + head;
            Number rotated[MAX_HEAD_DIM];
            rotate(
                call, in + key_head * width, call.norm ? call.norm + key_head * width : nullptr, inverse, 1.0f,
                position, rotated);
            write_key(keys + head * cache.head_elements(), offset, width, rotated);
            const float* from = in + (call.first_value + head) * width;
            const float factor = call.norms_values ? inverse_rms(from, width, call.eps) : 1.0f;
            Number rounded[MAX_HEAD_DIM];
            int i = 0;
            for (; i + LANES <= width; i += LANES) store_rounded(rounded + i, load<Floats>(from + i) * factor);
            for (; i < width; i++) store_rounded(rounded + i, from[i] * factor);
            write_value(values + head * cache.head_elements(), offset, width, rounded);
        }
    }
}

static void rope_cache(const RopeCacheCall& call, int begin, int end) {
    return call.cache.is_f32 ? rope_cache_of<float>(call, begin, end) : rope_cache_of<Bfloat16>(call, begin, end);
}

}  // namespace chairlift::CHAIRLIFT_SET
