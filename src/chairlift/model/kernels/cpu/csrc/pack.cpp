#include "pack.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

namespace chairlift {

namespace {

float to_f32(float number) { return number; }

float to_f32(Bfloat16 half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Returns the smallest bfloat16 that is at least a positive float.
uint16_t round_up_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0xffff) >> 16);
}

// Returns the float16 nearest to a number, ties to even; the largest finite one for all beyond it, and NaN for NaN.
uint16_t to_f16(float value) {
    if (value != value) return 0x7e00;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const float size = fabsf(value);
    if (size >= 65504.0f) return sign | 0x7bff;
    if (size < 0x1p-14f) return sign | (uint16_t)rintf(size * 0x1p24f);  // subnormal
    bits &= 0x7fffffff;
    return sign | (uint16_t)((bits + 0xfff + (bits >> 13 & 1)) - (112u << 23) >> 13);
}

float f16_to_f32(uint16_t half) {
    const uint32_t bits = (half & 0x7fffu) << 13;
    float size;
    memcpy(&size, &bits, sizeof size);
    size *= 0x1p112f;  // the exponent's bias is 112 less
    return half & 0x8000 ? -size : size;
}

// A group of weights as codes 0 to 15: code * scale - minimum, with both rounded to float16.
struct Group4 {
    uint16_t scale, minimum;
    uint8_t codes[GROUP];
    float loss;  // squared error

    // Rounds values to the nearest codes.
    Group4(const float* values, float exact_scale, float exact_minimum)
        : scale(to_f16(exact_scale)), minimum(to_f16(exact_minimum)), loss(0) {
        const float step = f16_to_f32(scale), offset = f16_to_f32(minimum), inverse = step > 0 ? 1.0f / step : 0.0f;
        float losses[4] = {};
        for (int i = 0; i < GROUP; i++) {
            float code = (values[i] + offset) * inverse + 0.5f;
            code = !(code >= 0.0f) ? 0.0f : code > 15.5f ? 15.5f : code;  // 0 for NaN
            codes[i] = (uint8_t)(int)code;
            const float error = values[i] - (codes[i] * step - offset);
            losses[i % 4] += error * error;
        }
        loss = losses[0] + losses[1] + losses[2] + losses[3];
    }

    // Returns the same codes under the scale and minimum with the least squared error, and rounds again.
    Group4 refined(const float* values) const {
        float sum = 0, squares = 0, products = 0, total = 0;
        for (int i = 0; i < GROUP; i++) {
            const float code = codes[i];
            sum += code, squares += code * code, products += code * values[i], total += values[i];
        }
        const float spread = GROUP * squares - sum * sum;
        if (spread <= 0) return *this;
        const float step = (GROUP * products - sum * total) / spread;
        return step > 0 ? Group4(values, step, (step * sum - total) / GROUP) : *this;
    }
};

// Returns the best of some groups that clip the largest and smallest values more or less. A NaN or infinity makes the
// scale and the minimum NaN, so that it reaches the output.
Group4 best_group(const float* values) {
    float least = values[0], most = values[0], nonfinite = 0;
    for (int i = 0; i < GROUP; i++)
        least = fminf(least, values[i]), most = fmaxf(most, values[i]), nonfinite += values[i] * 0.0f;
    if (nonfinite != 0.0f) return Group4(values, NAN, NAN);
    const float middle = (least + most) / 2, whole = (most - least) / 15;
    Group4 best(values, whole, 7.5f * whole - middle);
    for (const float share : {1.0f, 0.95f, 0.9f, 0.85f, 0.8f}) {
        const float step = whole * share;
        const Group4 found = Group4(values, step, 7.5f * step - middle).refined(values);
        if (found.loss < best.loss) best = found;
    }
    return best;
}

int output_of(int row, Placement placement, int first) {
    if (placement == STACKED) return first + row;
    return row / 16 * HALF_PANEL + row % 16 + (placement == UPS ? 16 : 0);
}

// Returns where the first step of an output is.
uint8_t* data_at(const Weight& weight, int output) {
    return const_cast<uint8_t*>(weight.data) + output / PANEL * weight.panel_bytes() + output % PANEL * 4;
}

// Returns the place of a scale or minimum of an output; `numbers` has one for each group, or for each SUPER_GROUPS.
uint16_t& scale_at(const Weight& weight, const uint16_t* numbers, int output, int index) {
    const int count = has_super_scales(weight.kind) ? weight.groups() / SUPER_GROUPS : weight.groups();
    return const_cast<uint16_t*>(numbers)[((size_t)(output / PANEL) * count + index) * PANEL + output % PANEL];
}

// The same for those of 8 bits; there are `per_group` in each group.
int8_t& small_at(const Weight& weight, const int8_t* numbers, int per_group, int output, int index) {
    const size_t count = (size_t)weight.groups() * per_group;
    return const_cast<int8_t*>(numbers)[((output / PANEL) * count + index) * PANEL + output % PANEL];
}

// Writes the codes of a group: GROUP bytes (kernels.h).
void write_codes(const Weight& weight, int output, int group, const uint8_t* codes) {
    const int bits = code_bits(weight.kind);
    uint8_t* to = data_at(weight, output) + (size_t)group * bits * STEP_BYTES;
    if (bits == 8) {
        for (int quad = 0; quad < QUADS; quad++) memcpy(to + quad * STEP_BYTES, codes + quad * 4, 4);
        return;
    }
    for (int step = 0; step < 4; step++, codes += 8, to += STEP_BYTES)
        for (int byte = 0; byte < 4; byte++) to[byte] = (codes[byte] & 15) | codes[byte + 4] << 4;
    codes -= GROUP;
    const int more = bits - 4;
    for (int first = 0; more && first < QUADS; first += QUADS / more, to += STEP_BYTES) {
        uint8_t bytes[4] = {};
        for (int quad = 0; quad < QUADS / more; quad++)
            for (int byte = 0; byte < 4; byte++)
                bytes[byte] |= codes[(first + quad) * 4 + byte] >> 4 << quad * more;
        memcpy(to, bytes, 4);
    }
}

typedef float Lanes __attribute__((vector_size(16)));  // every 64-bit processor has such vectors

// Rounds to nearest. Adding and subtracting 1.5 * 2**23 rounds without a function call.
inline Lanes round_to_nearest(Lanes steps) {
    const Lanes shift = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};
    return steps + shift - shift;
}

// Clamps to -most..most; NaN becomes 0.
inline Lanes clamp(Lanes steps, float most) {
    const Lanes high = {most, most, most, most};
    steps = steps > high ? high : steps;
    return steps >= -high ? steps : steps < -high ? -high : Lanes{};
}

// How a kind with a scale and without a minimum is rounded: levels from -most to most, codes of level + offset. The
// scale is one of so many bfloat16 numbers below that of the largest value, and so many above it.
struct Rounding {
    float most;
    int offset, below, above;
};

// How close values are to multiples of a scale is random, and of int8 the best of nine scales has a tenth less squared
// error than the first. With fewer levels, clipping the largest value by up to a tenth is often better.
constexpr Rounding INT8_ROUNDING = {127, 128, 2, 6}, INT6_ROUNDING = {31, 32, 12, 8};

// Returns the squared error of a group under a scale. CLIPS: some values may exceed `most` scales.
template <bool CLIPS>
inline float rounding_loss(const Lanes* values, float scale, float most) {
    const float inverse = 1.0f / scale;
    Lanes sums = {};
    for (int i = 0; i < GROUP / 4; i++) {
        Lanes steps = round_to_nearest(values[i] * inverse);
        const Lanes error = values[i] - (CLIPS ? clamp(steps, most) : steps) * scale;
        sums += error * error;
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

// Returns the bfloat16 scale near max_abs / most with the least squared error, or NaN for a NaN or infinity.
uint16_t best_scale(const Lanes* values, float max_abs, const Rounding& rounding) {
    const uint16_t first_scale = round_up_to_bf16(max_abs / rounding.most);
    if (first_scale <= rounding.below || max_abs == 0.0f) return first_scale;
    uint16_t best = first_scale;
    float least_loss = rounding_loss<false>(values, to_f32(first_scale), rounding.most);
    for (int step = -rounding.below; step <= rounding.above; step++) {
        const float scale = to_f32((uint16_t)(first_scale + step));
        // From first_scale on, no value exceeds the largest level.
        const float loss = step < 0 ? rounding_loss<true>(values, scale, rounding.most)
                                    : rounding_loss<false>(values, scale, rounding.most);
        if (loss < least_loss) least_loss = loss, best = (uint16_t)(first_scale + step);
    }
    return best;
}

// Rounds four values under a scale to codes.
inline void round_four(
    Lanes values, float scale, float inverse, const Rounding& rounding, uint8_t* codes, QuantizationError& error) {
    const Lanes levels = clamp(round_to_nearest(values * inverse), rounding.most), errors = values - levels * scale;
    for (int lane = 0; lane < 4; lane++) {
        codes[lane] = (uint8_t)((int)levels[lane] + rounding.offset);
        error.squared_error += (double)errors[lane] * errors[lane];
        error.squared_norm += (double)values[lane] * values[lane];
    }
}

// Packs rows of `Number`, a number in memory of two or four bytes.
template <typename Number>
struct Job {
    const Weight& weight;
    const Number* rows;
    int count;
    Placement placement;
    int first;
    const ThreadPool& pool;
    std::vector<QuantizationError> errors;

    int output(int row) const { return output_of(row, placement, first); }

    uint8_t* at(int output) const { return data_at(weight, output); }

    void copy(int row) const {
        constexpr int PER_STEP = 4 / sizeof(Number);
        const Number* from = rows + (size_t)row * weight.inputs;
        uint8_t* to = at(output(row));
        int i = 0;
        for (; i + PER_STEP <= weight.inputs; i += PER_STEP, to += STEP_BYTES) memcpy(to, from + i, 4);
        // An odd last input: the other half of the step stays zero.
        if (i < weight.inputs) memcpy(to, from + i, sizeof(Number));
    }

    // Copies float16: of each step, the first inputs of all outputs and then the second.
    void copy_apart(int row) const {
        const Number* from = rows + (size_t)row * weight.inputs;
        const int to = output(row);
        uint8_t* panel = const_cast<uint8_t*>(weight.data) + to / PANEL * weight.panel_bytes();
        for (int i = 0; i < weight.inputs; i++)
            ((Number*)(panel + (size_t)(i / 2) * STEP_BYTES))[i % 2 * PANEL + to % PANEL] = from[i];
    }

    // Returns four weights of a row; zeros follow its end.
    Lanes load_four(int row, int i) const {
        const Number* from = rows + (size_t)row * weight.inputs;
        Lanes values = {};
        for (int lane = 0; lane < 4 && i + lane < weight.inputs; lane++) values[lane] = to_f32(from[i + lane]);
        return values;
    }

    // Returns the largest absolute value of a row's inputs, or NaN if one of them is NaN or infinite.
    float max_abs(int row, int begin, int end) const {
        const Number* from = rows + (size_t)row * weight.inputs;
        float max_value = 0, zero_products = 0;
        for (int i = begin; i < end; i++) {
            const float value = to_f32(from[i]);
            max_value = fmaxf(max_value, fabsf(value)), zero_products += value * 0.0f;
        }
        return zero_products == 0.0f ? max_value : NAN;
    }

    void pack_channel(int row, QuantizationError& error) const {
        uint8_t* to = at(output(row));
        const float scale = max_abs(row, 0, weight.inputs) / INT8_ROUNDING.most, inverse = scale > 0 ? 1.0f / scale : 0;
        const_cast<float*>(weight.scales)[output(row)] = scale;
        for (int i = 0; i < weight.inputs; i += 4, to += STEP_BYTES)
            round_four(load_four(row, i), scale, inverse, INT8_ROUNDING, to, error);
    }

    void pack_scaled(int row, const Rounding& rounding, QuantizationError& error) const {
        for (int group = 0, begin = 0; begin < weight.inputs; group++, begin += GROUP) {
            const int end = begin + GROUP < weight.inputs ? begin + GROUP : weight.inputs;
            Lanes values[GROUP / 4] = {};
            for (int i = begin; i < end; i += 4) values[(i - begin) / 4] = load_four(row, i);
            const uint16_t found = best_scale(values, max_abs(row, begin, end), rounding);
            const float scale = to_f32(found), inverse = scale > 0 ? 1.0f / scale : 0.0f;
            uint8_t codes[GROUP] = {};
            for (int i = 0; i < end - begin; i += 4)
                round_four(values[i / 4], scale, inverse, rounding, codes + i, error);
            write_codes(weight, output(row), group, codes);
            scale_at(weight, weight.group_scales, output(row), group) = found;
        }
    }

    void pack_codes(int row, QuantizationError& error) const {
        const Number* from = rows + (size_t)row * weight.inputs;
        for (int group = 0, begin = 0; begin < weight.inputs; group++, begin += GROUP) {
            float values[GROUP];
            // Inputs behind the last one are zeros, whatever the weights that stand in for theirs.
            for (int i = 0; i < GROUP; i++) values[i] = to_f32(from[begin + i < weight.inputs ? begin + i : begin]);
            const Group4 found = best_group(values);
            write_codes(weight, output(row), group, found.codes);
            scale_at(weight, weight.group_scales, output(row), group) = found.scale;
            scale_at(weight, weight.group_minima, output(row), group) = found.minimum;
            const float step = f16_to_f32(found.scale), offset = f16_to_f32(found.minimum);
            for (int i = 0; i < GROUP && begin + i < weight.inputs; i++) {
                const double difference = values[i] - (found.codes[i] * step - offset);
                error.squared_error += difference * difference, error.squared_norm += (double)values[i] * values[i];
            }
        }
    }

    void pack_row(int row, QuantizationError& error) const {
        if (weight.kind == FLOAT16) return copy_apart(row);
        if (!is_quantized(weight.kind)) return copy(row);
        if (weight.kind == INT4_GROUP) return pack_codes(row, error);
        if (weight.kind == INT8_CHANNEL) return pack_channel(row, error);
        pack_scaled(row, weight.kind == INT6_GROUP ? INT6_ROUNDING : INT8_ROUNDING, error);
    }
};

template <typename Number>
QuantizationError pack_rows(
    ThreadPool& pool, const Weight& weight, const Number* rows, int count, Placement placement, int first) {
    using Job = Job<Number>;
    Job job = {weight, rows, count, placement, first, pool, std::vector<QuantizationError>(pool.max_size())};
    pool.run(
        [](void* context, int thread_index) {
            Job& job = *(Job*)context;
            QuantizationError error = {};
            // One thread packs a whole panel, so that no two threads write the same cache line.
            const int run = job.placement == STACKED ? PANEL : PANEL / 2;
            for (int begin = thread_index * run; begin < job.count; begin += job.pool.size() * run)
                for (int row = begin; row < begin + run && row < job.count; row++) job.pack_row(row, error);
            job.errors[thread_index] = error;
        },
        &job);
    QuantizationError total = {};
    for (const QuantizationError& error : job.errors)
        total.squared_error += error.squared_error, total.squared_norm += error.squared_norm;
    return total;
}

// -- blocks of ggml ---------------------------------------------------------------------------------------------------

// Where the parts of a block are: bytes from its beginning; -1: it has none. Types with super-scales have 256 elements
// in a block, others 32. `run`: bytes whose lower halves are followed by their upper halves.
struct BlockLayout {
    int bytes, codes, run, high_bits, scale, minimum;
};

BlockLayout block_layout(WeightKind kind) {
    switch (kind) {
        case Q4_0: case IQ4_NL: return {18, 2, 16, -1, 0, -1};
        case INT4_GROUP: return {20, 4, 16, -1, 0, 2};
        case Q5_0: return {22, 6, 16, 2, 0, -1};
        case Q5_1: return {24, 8, 16, 4, 0, 2};
        case Q8_0: return {34, 2, 0, -1, 0, -1};
        case MXFP4: return {17, 1, 16, -1, 0, -1};
        case Q4_K: return {144, 16, 32, -1, 0, 2};
        case Q5_K: return {176, 48, 32, 16, 0, 2};
        case Q6_K: return {210, 0, 64, 128, 208, -1};
        case IQ4_XS: return {136, 8, 16, -1, 0, -1};
        default: return {};
    }
}

uint16_t load_half(const uint8_t* from) {
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return half;
}

constexpr uint16_t HALF_SIGN = 0x8000, HALF_EXPONENT = 0x7c00;

// Writes the codes of a block to bytes.
void unpack_codes(WeightKind kind, const BlockLayout& layout, const uint8_t* block, int elements, uint8_t* codes) {
    const uint8_t* from = block + layout.codes;
    if (kind == Q8_0) {
        for (int i = 0; i < elements; i++) codes[i] = from[i] ^ 128;  // + 128
        return;
    }
    for (int i = 0; i < elements; i += 2 * layout.run, from += layout.run)
        for (int byte = 0; byte < layout.run; byte++)
            codes[i + byte] = from[byte] & 15, codes[i + layout.run + byte] = from[byte] >> 4;
    const uint8_t* high = block + layout.high_bits;
    if (kind == Q5_0 || kind == Q5_1)
        for (int i = 0; i < elements; i++) codes[i] |= (high[i / 8] >> i % 8 & 1) << 4;
    else if (kind == Q5_K)
        for (int i = 0; i < elements; i++) codes[i] |= (high[i % 32] >> i / 32 & 1) << 4;
    else if (kind == Q6_K)
        for (int i = 0; i < elements; i++) codes[i] |= (high[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) << 4;
}

// Writes the 8 small scales and minima of a block of Q4_K or Q5_K. The first four are in the low six bits of bytes 0..3
// and 4..7. The others have their low four bits in bytes 8..11, and their high two bits are the high bits of the first.
void unpack_six_bits(const uint8_t* from, int8_t* scales, int8_t* minima) {
    for (int i = 0; i < 4; i++) {
        scales[i] = from[i] & 63, minima[i] = from[i + 4] & 63;
        scales[i + 4] = (from[i + 8] & 15) | from[i] >> 6 << 4;
        minima[i + 4] = from[i + 8] >> 4 | from[i + 4] >> 6 << 4;
    }
}

// Writes the scales and minima of the block of so many groups from the `group`-th on.
void write_scales(
    const Weight& weight, const BlockLayout& layout, const uint8_t* block, int output, int group) {
    const WeightKind kind = weight.kind;
    const int index = has_super_scales(kind) ? group / SUPER_GROUPS : group;
    uint16_t scale = load_half(block + layout.scale);
    if (kind == MXFP4) scale = block[0] > 1 ? (block[0] - 1) << 7 : 0x20 << block[0];  // 2**(e - 128) in bfloat16
    scale_at(weight, weight.group_scales, output, index) = scale;
    if (has_minima(kind)) {
        // The simple types add their minimum.
        const uint16_t minimum = load_half(block + layout.minimum) ^ (has_super_scales(kind) ? 0 : HALF_SIGN);
        scale_at(weight, weight.group_minima, output, index) = minimum;
    }
    if (!has_super_scales(kind)) return;
    int8_t scales[2 * SUPER_GROUPS], minima[SUPER_GROUPS];
    if (kind == Q6_K) {
        memcpy(scales, block + 192, sizeof scales);
    } else if (kind == IQ4_XS) {
        const uint16_t high = load_half(block + 2);
        for (int i = 0; i < SUPER_GROUPS; i++)
            scales[i] = ((block[4 + i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4) - 32;
    } else {
        unpack_six_bits(block + 4, scales, minima);
    }
    const int per_group = scales_per_group(kind);
    for (int i = 0; i < SUPER_GROUPS * per_group; i++)
        small_at(weight, weight.small_scales, per_group, output, group * per_group + i) = scales[i];
    for (int i = 0; has_minima(kind) && i < SUPER_GROUPS; i++)
        small_at(weight, weight.small_minima, 1, output, group + i) = minima[i];
}

bool is_damaged(WeightKind kind, const BlockLayout& layout, const uint8_t* block) {
    if (kind == MXFP4) return block[0] == 255;
    const auto is_infinite = [=](int at) {
        return at >= 0 && (load_half(block + at) & HALF_EXPONENT) == HALF_EXPONENT;
    };
    return is_infinite(layout.scale) || is_infinite(layout.minimum);
}

// Packs one row of blocks; returns how many of them have a scale that is infinite or NaN.
int64_t pack_block_row(const Weight& weight, const uint8_t* block, int output) {
    const BlockLayout layout = block_layout(weight.kind);
    const int elements = has_super_scales(weight.kind) ? SUPER_GROUPS * GROUP : GROUP;
    int64_t damaged = 0;
    for (int begin = 0; begin < weight.inputs; begin += elements, block += layout.bytes) {
        uint8_t codes[SUPER_GROUPS * GROUP];
        unpack_codes(weight.kind, layout, block, elements, codes);
        for (int i = 0; i < elements; i += GROUP) write_codes(weight, output, (begin + i) / GROUP, codes + i);
        write_scales(weight, layout, block, output, begin / GROUP);
        damaged += is_damaged(weight.kind, layout, block);
    }
    return damaged;
}

}  // namespace

QuantizationError pack(
    ThreadPool& pool, const Weight& weight, const void* rows, bool is_f32, int count, Placement placement, int first) {
    return is_f32 ? pack_rows(pool, weight, (const float*)rows, count, placement, first)
                  : pack_rows(pool, weight, (const uint16_t*)rows, count, placement, first);
}

int64_t pack_blocks(
    ThreadPool& pool, const Weight& weight, const uint8_t* rows, size_t row_bytes, const int32_t* order, int count,
    Placement placement, int first) {
    std::atomic<int64_t> damaged{0};
    std::atomic<int> next{0};
    auto work = [&] {
        // One thread packs a whole panel, as above.
        const int run = placement == STACKED ? PANEL : PANEL / 2;
        int64_t own = 0;
        for (int begin; (begin = next.fetch_add(run)) < count;)
            for (int row = begin; row < begin + run && row < count; row++)
                own += pack_block_row(
                    weight, rows + (order ? order[row] : row) * row_bytes, output_of(row, placement, first));
        damaged += own;
    };
    pool.run([](void* context, int) { (*(decltype(work)*)context)(); }, &work);
    return damaged;
}

}  // namespace chairlift
