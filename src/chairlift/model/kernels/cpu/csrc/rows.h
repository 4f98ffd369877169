// What is done to one row after another: embedding, norms, quantisation, and what lies between projection and attention.
#pragma once

#include <cmath>

#include "kernels.h"
#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

// One weight of a packed table.
static float unpacked(const Weight& weight, int output, int input) {
    const int panel = output / PANEL, column = output % PANEL;
    const uint8_t* data = weight.data + panel * weight.panel_bytes() + column * 4;
    if (weight.kind == BFLOAT16) {
        uint16_t half;
        memcpy(&half, data + (size_t)(input / 2) * STEP_BYTES + input % 2 * 2, sizeof half);
        return widened(half);
    }
    const int value = data[(size_t)(input / 4) * STEP_BYTES + input % 4] - 128;
    if (weight.kind == INT8_CHANNEL) return value * weight.scales[output];
    const size_t group = (size_t)panel * weight.groups() + input / GROUP;
    return value * widened(weight.group_scales[group * PANEL + column]);
}

static void embed(const EmbedCall& call, int begin, int end) {
    for (int row = begin; row < end; row++) {
        const int64_t id = call.ids[row];
        float* out = call.out + row * call.out_stride;
        const uint16_t* from = call.table ? call.table + id * call.width : nullptr;
        for (int i = 0; i < call.width; i++)
            out[i] = (from ? widened(from[i]) : unpacked(*call.packed, (int)id, i)) * call.factor;
    }
}

// 1 / sqrt(mean of squares + eps) of `width` floats.
CHAIRLIFT_INLINE float inverse_norm(const float* in, int width, float eps) {
    Floats squares = {};
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        Floats x = load<Floats>(in + i);
        squares = fma(x, x, squares);
    }
    float total = sum(squares);
    for (; i < width; i++) total += in[i] * in[i];
    return 1.0f / sqrtf(total / width + eps);
}

static void norm(const NormCall& call, int begin, int end) {
    for (int row = begin; row < end; row++) {
        const float* in = call.in + row * call.in_stride;
        const float inverse = inverse_norm(in, call.width, call.eps);
        int i = 0;
        if (call.mode == NORM_HALVES) {
            uint16_t* out = (uint16_t*)call.out + row * call.out_stride;
            for (; i + LANES <= call.width; i += LANES)
                narrow(out + i, load<Floats>(in + i) * inverse * load<Floats>(call.weight + i));
            for (; i < call.width; i++) out[i] = narrowed(in[i] * inverse * call.weight[i]);
        } else {
            const bool added = call.mode == NORM_ADD;
            float* out = (float*)call.out + row * call.out_stride;
            for (; i + LANES <= call.width; i += LANES) {
                Floats normed = load<Floats>(in + i) * inverse * load<Floats>(call.weight + i);
                store(out + i, added ? load<Floats>(out + i) + normed : normed);
            }
            for (; i < call.width; i++) out[i] = (added ? out[i] : 0.0f) + in[i] * inverse * call.weight[i];
        }
    }
}

CHAIRLIFT_INLINE Floats floats_of(const uint16_t* in) { return widened(in); }
CHAIRLIFT_INLINE Floats floats_of(const float* in) { return load<Floats>(in); }
CHAIRLIFT_INLINE float float_of(uint16_t in) { return widened(in); }
CHAIRLIFT_INLINE float float_of(float in) { return in; }

// int8 = round(x / scale), scale = largest |x| / 127; NaN and infinity make the scale NaN, so the row stays ill.
template <class In>
CHAIRLIFT_INLINE void quantize_run(const In* in, int width, int8_t* out, float* scale, int32_t* total) {
    Floats peak = {}, nothing = {};
    int i = 0;
    for (; i + LANES <= width; i += LANES) {
        Floats x = floats_of(in + i);
        peak = larger(peak, x > 0.0f ? x : -x);
        nothing += x * 0.0f;
    }
    float most = largest(peak), ill = sum(nothing);
    for (; i < width; i++) {
        float x = fabsf(float_of(in[i]));
        most = x > most ? x : most, ill += x * 0.0f;
    }
    *scale = ill == 0.0f ? most / 127.0f : NAN;
    const float inverse = ill == 0.0f && most > 0.0f ? 127.0f / most : 0.0f;
    Ints sums = {};
    int32_t rest = 0;
    for (i = 0; i + LANES <= width && ill == 0.0f; i += LANES) {
        Ints values = to_ints(floats_of(in + i) * inverse);
        sums += values;
        store(out + i, __builtin_convertvector(values, Bytes));
    }
    for (; i < width; i++) {
        int32_t value = ill == 0.0f ? (int32_t)rintf(float_of(in[i]) * inverse) : 0;
        out[i] = (int8_t)value, rest += value;
    }
    *total = -128 * (rest + sum(sums));
}

// LANES groups side by side: the same, without a reduction over lanes for each of them.
template <class In>
CHAIRLIFT_INLINE void quantize_groups(const In* in, int8_t* out, float* scales, int32_t* totals) {
    constexpr int VECTORS = GROUP / LANES;
    Ints peaks[LANES], sums[LANES];
    for (int group = 0; group < LANES; group++) {
        peaks[group] = Ints{};
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {  // as integers: NaN is larger than infinity, and that than all numbers
            const Ints size = (Ints)floats_of(in + group * GROUP + v * LANES) & 0x7fffffff;
            peaks[group] = size > peaks[group] ? size : peaks[group];
        }
    }
    const Ints bits = across(peaks, [](Ints a, Ints b) { return a > b ? a : b; });
    const Floats most = as_floats(bits);
    const Ints ill = bits >= 0x7f800000;
    store(scales, ill ? all(NAN) : most / 127.0f);
    alignas(64) float inverses[LANES];
    alignas(64) int32_t kept[LANES];
    store(inverses, ill | (bits == 0) ? Floats{} : 127.0f / most);
    store(kept, ~ill);
    for (int group = 0; group < LANES; group++) {
        const Floats inverse = all(inverses[group]);
        sums[group] = Ints{};
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            const int at = group * GROUP + v * LANES;
            const Ints values = to_ints(floats_of(in + at) * inverse) & kept[group];
            sums[group] += values;
            store(out + at, __builtin_convertvector(values, Bytes));
        }
    }
    const Ints total = across(sums, [](Ints a, Ints b) { return a + b; });
    store(totals, -128 * total);
}

template <class In>
CHAIRLIFT_INLINE void quantize_rows(const QuantizeCall& call, const In* in, int begin, int end) {
    const int run = call.kind == INT8_GROUP ? GROUP : call.width, runs = call.width / run;
    for (int row = begin; row < end; row++) {
        int i = 0;
        for (; call.kind == INT8_GROUP && i + LANES <= runs; i += LANES) {
            const size_t at = (size_t)row * runs + i;
            quantize_groups(
                in + row * call.in_stride + i * run, call.out + row * call.out_stride + i * run, call.scales + at,
                call.sums + at);
        }
        for (; i < runs; i++) {
            const size_t at = (size_t)row * runs + i;
            quantize_run(
                in + row * call.in_stride + i * run, run, call.out + row * call.out_stride + i * run, call.scales + at,
                call.sums + at);
        }
    }
}

static void quantize(const QuantizeCall& call, int begin, int end) {
    if (call.is_float)
        quantize_rows(call, (const float*)call.in, begin, end);
    else
        quantize_rows(call, (const uint16_t*)call.in, begin, end);
}

// One query or key head: normed where the model does so, turned by its position, rounded.
static void turn(const HeadsCall& call, const float* in, const float* norm, int64_t position, uint16_t* out) {
    const int half = call.cache.head_dim / 2;
    const float* cosines = call.cosines + position * half;
    const float* sines = call.sines + position * half;
    const float inverse = norm ? inverse_norm(in, 2 * half, call.eps) : 1.0f;
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        Floats left = load<Floats>(in + i), right = load<Floats>(in + half + i);
        if (norm) {
            left = left * inverse * load<Floats>(norm + i);
            right = right * inverse * load<Floats>(norm + half + i);
        }
        Floats cosine = load<Floats>(cosines + i), sine = load<Floats>(sines + i);
        narrow(out + i, fma(left, cosine, -(right * sine)));
        narrow(out + half + i, fma(right, cosine, left * sine));
    }
    for (; i < half; i++) {
        float left = in[i], right = in[half + i];
        if (norm) left = left * inverse * norm[i], right = right * inverse * norm[half + i];
        out[i] = narrowed(left * cosines[i] - right * sines[i]);
        out[half + i] = narrowed(right * cosines[i] + left * sines[i]);
    }
}

static void heads(const HeadsCall& call, int begin, int end) {
    const Cache& cache = call.cache;
    const int width = cache.head_dim;
    for (int row = begin; row < end; row++) {
        const float* in = call.in + row * call.in_stride;
        uint16_t* queries = call.queries + row * call.queries_stride;
        const int64_t position = call.positions[row], slot = call.slots[row];
        for (int head = 0; head < call.heads; head++)
            turn(call, in + head * width, call.norm ? call.norm + head * width : nullptr, position,
                 queries + head * width);
        if (slot < 0) continue;
        const int offset = slot % cache.block_size;
        uint16_t* keys = cache.keys + slot / cache.block_size * cache.block_elements();
        uint16_t* values = cache.values + slot / cache.block_size * cache.block_elements();
        for (int head = 0; head < cache.kv_heads; head++) {
            const int turning = call.heads + head;
            uint16_t turned[MAX_HEAD_DIM];
            turn(call, in + turning * width, call.norm ? call.norm + turning * width : nullptr, position, turned);
            uint16_t* key = keys + head * cache.head_elements() + offset / KEY_TILE * KEY_TILE * width;
            for (int i = 0; i < width / 2; i++)
                memcpy(key + (i * KEY_TILE + offset % KEY_TILE) * 2, turned + 2 * i, 4);
            const float* from = in + (call.heads + cache.kv_heads + head) * width;
            uint16_t* value = values + head * cache.head_elements() + offset / 2 * width * 2 + offset % 2;
            uint16_t rounded[MAX_HEAD_DIM];
            int i = 0;
            for (; i + LANES <= width; i += LANES) narrow(rounded + i, load<Floats>(from + i));
            for (; i < width; i++) rounded[i] = narrowed(from[i]);
            for (i = 0; i < width; i++) value[2 * i] = rounded[i];
        }
    }
}

}  // namespace chairlift::CHAIRLIFT_SET
