#include "pack.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace chairlift {

namespace {

float widened(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// The next bfloat16 not below a positive float.
uint16_t narrowed_up(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0xffff) >> 16);
}

typedef float Lanes __attribute__((vector_size(16)));  // which every machine of 64 bits has

// Numbers of steps of a scale, to nearest: the sum of 1.5 * 2**23 rounds without a call.
inline Lanes rounded(Lanes steps) {
    const Lanes shift = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};
    return steps + shift - shift;
}

// As far as int8 goes.
inline Lanes bounded(Lanes steps) {
    const Lanes high = {127.0f, 127.0f, 127.0f, 127.0f};
    steps = steps > high ? high : steps;
    return steps < -high ? -high : steps;
}

// What rounding a group to a scale loses; `clips`: whether some may be beyond 127 steps.
template <bool clips>
inline float lost(const Lanes* values, float scale) {
    const float inverse = 1.0f / scale;
    Lanes sums = {};
    for (int i = 0; i < GROUP / 4; i++) {
        Lanes steps = rounded(values[i] * inverse);
        const Lanes error = values[i] - (clips ? bounded(steps) : steps) * scale;
        sums += error * error;
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

// The bfloat16 scale near largest / 127 with which a group loses least. Which of the values fall close to a step is luck,
// and the best of a few draws has a tenth less of squared error than the first.
uint16_t best_scale(const Lanes* values, float largest) {
    const int below = 2, above = 6;
    const uint16_t plain = narrowed_up(largest / 127);
    if (plain <= below || largest == 0.0f) return plain;
    uint16_t best = plain;
    float least = lost<false>(values, widened(plain));
    for (int candidate = plain - below; candidate <= plain + above; candidate++) {
        const float scale = widened((uint16_t)candidate);
        const float squares = candidate < plain ? lost<true>(values, scale) : lost<false>(values, scale);
        if (squares < least) least = squares, best = (uint16_t)candidate;
    }
    return best;
}

struct Job {
    const Weight& weight;
    const uint16_t* rows;
    int count;
    Placement placement;
    int first, members;
    std::vector<Error> errors;

    int output(int row) const {
        if (placement == BELOW) return first + row;
        return row / 16 * HALF_PANEL + row % 16 + (placement == UPS ? 16 : 0);
    }

    uint8_t* at(int output) const {
        return const_cast<uint8_t*>(weight.data) + output / PANEL * weight.panel_bytes() + output % PANEL * 4;
    }

    void copy(int row) const {
        const uint16_t* from = rows + (size_t)row * weight.inputs;
        uint8_t* to = at(output(row));
        int i = 0;
        for (; i + 1 < weight.inputs; i += 2, to += STEP_BYTES) memcpy(to, from + i, 4);
        if (i < weight.inputs) memcpy(to, from + i, 2);
    }

    // Four weights of a row, with zeros behind its end.
    Lanes four(int row, int i) const {
        const uint16_t* from = rows + (size_t)row * weight.inputs;
        Lanes values = {};
        for (int lane = 0; lane < 4 && i + lane < weight.inputs; lane++) values[lane] = widened(from[i + lane]);
        return values;
    }

    void quantize(int row, int begin, int end, float scale, Error& error) const {
        uint8_t* to = at(output(row));
        const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
        for (int i = begin; i < end; i += 4) {
            const Lanes values = four(row, i), levels = bounded(rounded(values * inverse));
            const Lanes off = values - levels * scale;
            for (int lane = 0; lane < 4; lane++) {
                to[(size_t)(i / 4) * STEP_BYTES + lane] = (uint8_t)((int)levels[lane] + 128);
                error.squares += (double)off[lane] * off[lane];
                error.of += (double)values[lane] * values[lane];
            }
        }
    }

    float largest(int row, int begin, int end) const {
        const uint16_t* from = rows + (size_t)row * weight.inputs;
        float most = 0;
        for (int i = begin; i < end; i++) most = fmaxf(most, fabsf(widened(from[i])));
        return most;
    }

    void work(int row, Error& error) const {
        if (weight.kind == BFLOAT16) return copy(row);
        const int to = output(row), panel = to / PANEL;
        if (weight.kind == INT8_CHANNEL) {
            const float scale = largest(row, 0, weight.inputs) / 127;
            const_cast<float*>(weight.scales)[to] = scale;
            return quantize(row, 0, weight.inputs, scale, error);
        }
        for (int group = 0, begin = 0; begin < weight.inputs; group++, begin += GROUP) {
            const int end = begin + GROUP < weight.inputs ? begin + GROUP : weight.inputs;
            Lanes values[GROUP / 4] = {};
            for (int i = begin; i < end; i += 4) values[(i - begin) / 4] = four(row, i);
            const uint16_t scale = best_scale(values, largest(row, begin, end));
            const size_t place = ((size_t)panel * weight.groups() + group) * PANEL + to % PANEL;
            const_cast<uint16_t*>(weight.group_scales)[place] = scale;
            quantize(row, begin, end, widened(scale), error);
        }
    }
};

}  // namespace

Error pack(Pool& pool, const Weight& weight, const uint16_t* rows, int count, Placement placement, int first) {
    Job job = {weight, rows, count, placement, first, pool.size(), std::vector<Error>(pool.size())};
    pool.run(
        [](void* context, int member) {
            Job& job = *(Job*)context;
            Error error = {};
            // Whole panels to one member, so that no cache line is written by two.
            const int run = job.placement == BELOW ? PANEL : PANEL / 2;
            for (int begin = member * run; begin < job.count; begin += job.members * run)
                for (int row = begin; row < begin + run && row < job.count; row++) job.work(row, error);
            job.errors[member] = error;
        },
        &job);
    Error total = {};
    for (const Error& error : job.errors) total.squares += error.squares, total.of += error.of;
    return total;
}

}  // namespace chairlift
