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

// The next bfloat16 not below a positive float: a scale that is too small would clip.
uint16_t narrowed_up(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0xffff) >> 16);
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

    void quantize(int row, int begin, int end, float scale, Error& error) const {
        const uint16_t* from = rows + (size_t)row * weight.inputs;
        uint8_t* to = at(output(row));
        for (int i = begin; i < end; i++) {
            const float value = widened(from[i]);
            const float level = scale > 0 ? rintf(value / scale) : 0.0f;
            to[(size_t)(i / 4) * STEP_BYTES + i % 4] = (uint8_t)(level + 128);
            error.squares += (double)(value - level * scale) * (value - level * scale);
            error.of += (double)value * value;
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
            const uint16_t scale = narrowed_up(largest(row, begin, end) / 127);
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
