#include "tensors.h"

#include <atomic>
#include <cstring>

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

void LinearInput::set(const Weight& weight, const Rows& from) {
    // The kernels read whole steps, so rows that end within one are copied with zeros behind them.
    if (weight.padded_inputs() != weight.inputs) return copy(weight, from, nullptr);
    rows = {(const uint8_t*)from.data, from.stride * from.itemsize(), from.count, nullptr, nullptr};
    set_quantized(weight, from);
}

void LinearInput::copy(const Weight& weight, const Rows& from, const int32_t* row_indices) {
    const size_t width = weight.padded_inputs(), itemsize = from.itemsize();
    padded_.resize(from.count * width * itemsize);
    for (int row = 0; row < from.count; row++) {
        const size_t index = row_indices ? row_indices[row] : row;
        memcpy(
            &padded_[row * width * itemsize], (const uint8_t*)from.data + index * from.stride * itemsize,
            weight.inputs * itemsize);
    }
    rows = {padded_.data(), width * itemsize, from.count, nullptr, nullptr};
    set_quantized(weight, {padded_.data(), from.is_f32, width, from.count});
}

void LinearInput::set_quantized(const Weight& weight, const Rows& from) {
    if (!is_quantized(weight.kind)) return;
    const size_t width = weight.padded_inputs(), scales_per_row = has_groups(weight.kind) ? weight.groups() : 1;
    const size_t sums_per_row = has_groups(weight.kind) ? sums_of_groups(weight.groups()) : 1;
    quantized_.resize(from.count * width), scales_.resize(from.count * scales_per_row);
    sums_.resize(from.count * sums_per_row);
    quantize_ = {from.data, from.is_f32, from.stride, (int32_t)width, row_kind(weight.kind), quantized_.data(), width,
                 scales_.data(), sums_.data()};
    rows = {(const uint8_t*)quantized_.data(), width, from.count, scales_.data(), sums_.data()};
}

void multiply(
    ThreadPool& pool, const Kernels& kernels, const Weight& weight, const float* bias, bool is_gated,
    Activation activation, const Rows& rows, void* out, size_t out_stride) {
    LinearInput input;
    input.set(weight, rows);
    if (const QuantizeCall* quantize = input.quantize_call())
        parallel(
            pool, rows.count, TOKENS_PER_TASK, [&](int begin, int end) { kernels.quantize(*quantize, begin, end); });
    const LinearMode mode = is_gated ? GATED : rows.is_f32 ? STORE : ROUND;
    const LinearCall call = {&weight, input.rows, bias, mode, activation, out, out_stride, rows.is_f32, nullptr, 0};
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
    ThreadPool& pool, const Kernels& kernels, const Rows& rows, int width, const float* factors, float eps, void* out,
    size_t out_stride) {
    const NormMode mode = rows.is_f32 ? NORM_F32 : NORM_BF16;
    const NormCall call = {rows.data, !rows.is_f32, rows.stride, factors, eps, width, mode, out, out_stride};
    parallel(pool, rows.count, TOKENS_PER_TASK, [&](int begin, int end) { kernels.norm(call, begin, end); });
}

// Stores keys and values of tokens [begin, end).
template <typename Number>
static void store_tokens(
    const KVCache& cache, const NewTokens& keys, const NewTokens& values, const int64_t* slot_mapping, int begin,
    int end) {
    for (int token = begin; token < end; token++) {
        const int64_t slot = slot_mapping[token];
        if (slot < 0) continue;
        const int offset = slot % cache.block_size;
        const size_t block = slot / cache.block_size * cache.block_elements;
        for (int head = 0; head < cache.num_kv_heads; head++) {
            const size_t at = block + head * cache.head_elements();
            const Number* key = (const Number*)keys.data + token * keys.token_stride + head * keys.head_stride;
            const Number* value = (const Number*)values.data + token * values.token_stride + head * values.head_stride;
            write_key((Number*)cache.keys + at, offset, cache.head_dim, key);
            write_value((Number*)cache.values + at, offset, cache.head_dim, value);
        }
    }
}

void store_kv(
    ThreadPool& pool, const KVCache& cache, const NewTokens& keys, const NewTokens& values, const int64_t* slot_mapping,
    int count) {
    parallel(pool, count, TOKENS_PER_TASK, [&](int begin, int end) {
        if (cache.is_f32)
            store_tokens<float>(cache, keys, values, slot_mapping, begin, end);
        else
            store_tokens<Bfloat16>(cache, keys, values, slot_mapping, begin, end);
    });
}

}  // namespace chairlift
