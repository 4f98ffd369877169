#include "tensors.h"

#include <atomic>
#include <cstring>
#include <vector>

namespace chairlift {

namespace {

constexpr int TOKENS_PER_TASK = 16;

// Calls function(begin, end) for ranges of `count` items in all threads, or in this one if there are few.
template <typename Function>
void parallel(ThreadPool& pool, int count, int per_task, Function function) {
    if (count <= 2 * per_task) return function(0, count);
    struct Job {
        Function& function;
        int count, per_task;
        std::atomic<int> next{0};
    } job = {function, count, per_task};
    pool.run(
        [](void* context, int) {
            Job& job = *(Job*)context;
            for (int begin; (begin = job.next.fetch_add(job.per_task)) < job.count;)
                job.function(begin, begin + job.per_task < job.count ? begin + job.per_task : job.count);
        },
        &job);
}

}  // namespace

void multiply(
    ThreadPool& pool, const Kernels& kernels, const Weight& weight, const float* bias, LinearMode mode,
    Activation activation, const Rows& rows, uint16_t* out, size_t out_stride) {
    const bool quantized = weight.kind != BFLOAT16;
    const size_t width = (size_t)weight.steps * (quantized ? 4 : 2);
    LinearCall call = {&weight, {(const uint8_t*)rows.data, rows.stride * 2, rows.count, nullptr, nullptr},
                       bias, mode, activation, out, out_stride, false, nullptr, 0};
    std::vector<uint16_t> padded;
    // The kernels read whole steps, so rows that end within one are copied with zeros behind them.
    if (width != (size_t)weight.inputs) {
        padded.resize(rows.count * width);
        for (int row = 0; row < rows.count; row++)
            memcpy(&padded[row * width], rows.data + row * rows.stride, weight.inputs * sizeof(uint16_t));
        call.rows.data = (const uint8_t*)padded.data(), call.rows.stride = width * 2;
    }
    std::vector<int8_t> bytes;
    std::vector<float> scales;
    std::vector<int32_t> sums;
    if (quantized) {
        const size_t scales_per_row = weight.kind == INT8_GROUP ? weight.groups() : 1;
        bytes.resize(rows.count * width), scales.resize(rows.count * scales_per_row);
        sums.resize(rows.count * scales_per_row);
        const QuantizeCall quantize = {call.rows.data, false, call.rows.stride / 2, (int32_t)width, weight.kind,
                                       bytes.data(), width, scales.data(), sums.data()};
        parallel(pool, rows.count, TOKENS_PER_TASK, [&](int begin, int end) { kernels.quantize(quantize, begin, end); });
        call.rows = {(const uint8_t*)bytes.data(), width, rows.count, scales.data(), sums.data()};
    }
    struct Job {
        const Kernels& kernels;
        const LinearCall& call;
        int num_threads;
        std::atomic<int> next{0};
        // Takes two half panels at once while more than two for each thread remain.
        int take(int& begin) {
            const int halves = 2 * call.weight->panels;
            begin = next.load(std::memory_order_relaxed);
            for (int end; begin < halves;) {
                const int remaining = halves - begin;
                end = begin + (remaining > 2 * num_threads && remaining % 2 == 0 ? 2 : 1);
                if (next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) return end - begin;
            }
            return 0;
        }
    } job = {kernels, call, pool.size()};
    pool.run(
        [](void* context, int) {
            Job& job = *(Job*)context;
            const Weight& weight = *job.call.weight;
            int begin, next_begin;
            for (int count = job.take(begin), next_count; count; begin = next_begin, count = next_count) {
                next_count = job.take(next_begin);
                const uint8_t* ahead = next_count ? weight.data + next_begin / 2 * weight.panel_bytes() : nullptr;
                job.kernels.linear(job.call, begin, count, ahead, next_count ? weight.panel_bytes() : 0, nullptr);
            }
        },
        &job);
}

void rms_norm(
    ThreadPool& pool, const Kernels& kernels, const Rows& rows, int width, const float* factors, float eps,
    uint16_t* out, size_t out_stride) {
    const NormCall call = {rows.data, true, rows.stride, factors, eps, width, NORM_BF16, out, out_stride};
    parallel(pool, rows.count, TOKENS_PER_TASK, [&](int begin, int end) { kernels.norm(call, begin, end); });
}

void store_kv(
    ThreadPool& pool, const KVCache& cache, const NewTokens& keys, const NewTokens& values, const int64_t* slot_mapping,
    int count) {
    const int width = cache.head_dim;
    parallel(pool, count, TOKENS_PER_TASK, [&](int begin, int end) {
        for (int token = begin; token < end; token++) {
            const int64_t slot = slot_mapping[token];
            if (slot < 0) continue;
            const int offset = slot % cache.block_size;
            const size_t block = slot / cache.block_size * cache.block_elements();
            for (int head = 0; head < cache.num_kv_heads; head++) {
                const uint16_t* from = keys.data + token * keys.token_stride + head * keys.head_stride;
                uint16_t* key = cache.keys + block + head * cache.head_elements() + offset / KEY_TILE * KEY_TILE * width;
                for (int i = 0; i < width / 2; i++)
                    memcpy(key + (i * KEY_TILE + offset % KEY_TILE) * 2, from + 2 * i, 4);
                from = values.data + token * values.token_stride + head * values.head_stride;
                uint16_t* value =
                    cache.values + block + head * cache.head_elements() + offset / 2 * width * 2 + offset % 2;
                for (int i = 0; i < width; i++) value[2 * i] = from[i];
            }
        }
    });
}

}  // namespace chairlift
