#include "decoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace chairlift {

namespace {

constexpr size_t HUGE_PAGE = 2u << 20, LINE_BYTES = 64;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Allocates zeroed memory, on huge pages if the operating system provides them. Throws std::bad_alloc.
void* zeroed_pages(size_t bytes) {
    const size_t size = round_up(bytes, bytes < HUGE_PAGE ? 4096 : HUGE_PAGE);
    void* memory = aligned_alloc(bytes < HUGE_PAGE ? 4096 : HUGE_PAGE, size);
    if (!memory) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes >= HUGE_PAGE) madvise(memory, size, MADV_HUGEPAGE);
#endif
    memset(memory, 0, size);
    return memory;
}

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

size_t Buffer::bytes(size_t rows) const {
    return rows * stride * (kind == F32 ? 4 : kind == BF16 ? 2 : 1);
}

size_t Buffer::scales_per_row() const { return quantization == INT8_GROUP ? stride / GROUP : 1; }

size_t Buffer::sums_per_row() const { return quantization == INT8_GROUP ? sums_of_groups(stride / GROUP) : 1; }

Activations Buffer::rows(int count, size_t first) const {
    if (!first) return {(const uint8_t*)data, bytes(1), count, scales, sums};
    const bool is_quantized = kind == QUANTIZED;
    return {(const uint8_t*)data + bytes(first), bytes(1), count,
            is_quantized ? scales + first * scales_per_row() : nullptr,
            is_quantized ? sums + first * sums_per_row() : nullptr};
}

Decoder::~Decoder() {
    for (Buffer& buffer : buffers) free(buffer.data), free(buffer.scales), free(buffer.sums);
}

int Decoder::add_buffer(BufferKind kind, int width, WeightKind quantization, int rows_per_token) {
    Buffer buffer = {kind, width, row_kind(quantization), rows_per_token};
    // Rows are padded to whole panels of a weight. They have one cache line more, so that rows do not map to the same
    // cache sets.
    buffer.stride = kind == QUANTIZED ? round_up(width, GROUP)
                                      : round_up(width, PANEL) + LINE_BYTES / (kind == BF16 ? 2 : 4);
    buffers.push_back(buffer);
    return (int)buffers.size() - 1;
}

int Decoder::add_attention_plan(AttentionKind kind) {
    for (size_t i = 0; i < attention_plans.size(); i++)
        if (attention_plans[i].kind.group == kind.group && attention_plans[i].kind.window == kind.window) return (int)i;
    attention_plans.push_back({kind, {}, {}, {}, {}, 0});
    return (int)attention_plans.size() - 1;
}

void Decoder::reserve(int tokens) {
    tokens = std::max(tokens, pool.max_size());  // a fused norm keeps one row per thread
    // All are freed before the first is allocated: memory may not suffice for both.
    for (Buffer& buffer : buffers) {
        free(buffer.data), free(buffer.scales), free(buffer.sums);
        buffer.data = buffer.scales = nullptr, buffer.sums = nullptr;
    }
    for (Buffer& buffer : buffers) {
        const size_t rows = (size_t)tokens * buffer.rows_per_token;
        buffer.data = zeroed_pages(buffer.bytes(rows));
        if (buffer.kind != QUANTIZED) continue;
        buffer.scales = (float*)zeroed_pages(rows * buffer.scales_per_row() * sizeof(float));
        buffer.sums = (int32_t*)zeroed_pages(rows * buffer.sums_per_row() * sizeof(int32_t));
    }
}

void Decoder::run(const Step& step) {
    if (num_counters_ != operations_.size()) {
        num_counters_ = operations_.size();
        next_tasks_ = std::make_unique<std::atomic<int>[]>(num_counters_);
    }
    for (size_t i = 0; i < num_counters_; i++) next_tasks_[i].store(0, std::memory_order_relaxed);
    const double started_at = now();
    for (auto& operation : operations_) operation->prepare(step);
    record_time("prepare", now() - started_at);
    struct Job { Decoder* decoder; const Step* step; } job = {this, &step};
    pool.run(
        [](void* context, int thread_index) {
            ((Job*)context)->decoder->run_worker(*((Job*)context)->step, thread_index);
        },
        &job);
}

void Decoder::run_on(
    const Step& step, int in, void* in_data, size_t in_stride, int out, void* out_data, size_t out_stride) {
    const Buffer own_in = buffers[in], own_out = buffers[out];
    buffers[in].data = in_data, buffers[in].stride = in_stride;
    buffers[out].data = out_data, buffers[out].stride = out_stride;
    auto restore = [&] { buffers[in] = own_in, buffers[out] = own_out; };
    try {
        run(step);
    } catch (...) {
        restore();
        throw;
    }
    restore();
}

void Decoder::run_worker(const Step& step, int thread_index) {
    const int num_threads = pool.size();
    double started_at = thread_index ? 0 : now();
    for (size_t index = 0; index < operations_.size(); index++) {
        Operation& operation = *operations_[index];
        std::atomic<int>& counter = next_tasks_[index];
        const int total = operation.num_tasks(step);
        int end;
        auto take_tasks = [&]() -> int {
            int begin = counter.load(std::memory_order_relaxed);
            do {
                if (begin >= total) return -1;
                end = std::min(total, begin + operation.chunk_size(total - begin, num_threads));
            } while (!counter.compare_exchange_weak(begin, end, std::memory_order_relaxed));
            return begin;
        };
        // The next tasks are taken before these run, so that their first data can be prefetched.
        for (int begin = take_tasks(); begin >= 0;) {
            const int stop = end, next = take_tasks();
            operation.run(step, begin, stop, next, thread_index);
            begin = next;
        }
        // pool.run() has a barrier behind the last operation.
        if (index + 1 < operations_.size()) pool.barrier();
        if (thread_index == 0) {
            const double time = now();
            record_time(operation.name(), time - started_at);
            started_at = time;
        }
    }
}

void Decoder::lm_head(const Rows& rows, const int32_t* row_indices, const LMHeadCall& request) {
    const double started_at = now();
    const Weight& weight = *request.weight;
    const int num_threads = pool.max_size(), count = rows.count;
    std::vector<ArgMax> argmaxes((size_t)num_threads * 2 * count, ArgMax{-INFINITY, INT32_MAX});
    LinearInput input;
    input.copy(weight, rows, row_indices);
    if (const QuantizeCall* quantize = input.quantize_call()) kernels.quantize(*quantize, 0, count);
    const LinearCall call = {&weight, input.rows, nullptr, LOGITS, SILU, nullptr, 0, false, request.rows,
                             request.mask_words};
    struct Job {
        Decoder& decoder;
        const LinearCall& call;
        ArgMax* argmaxes;
        std::atomic<int> next{0};
    } job = {*this, call, argmaxes.data()};
    pool.run(
        [](void* context, int thread_index) {
            Job& job = *(Job*)context;
            const Weight& weight = *job.call.weight;
            ArgMax* argmaxes = job.argmaxes + (size_t)thread_index * 2 * job.call.rows.count;
            for (int panel = job.next++, next; panel < weight.panels; panel = next) {
                next = job.next++;
                const bool has_next = next < weight.panels;
                const uint8_t* ahead = has_next ? weight.data + next * weight.panel_bytes() : nullptr;
                job.decoder.kernels.linear(
                    job.call, 2 * panel, 2, ahead, has_next ? weight.panel_bytes() : 0, argmaxes);
            }
        },
        &job);
    // Equal logits: the lowest id, whichever thread had its panel.
    for (int index = 0; index < 2 * count; index++) {
        ArgMax argmax = argmaxes[index];
        for (int thread_index = 1; thread_index < num_threads; thread_index++) {
            const ArgMax& other = argmaxes[(size_t)thread_index * 2 * count + index];
            if (argmax.is_less_than(other)) argmax = other;
        }
        request.values[index] = argmax.value, request.ids[index] = argmax.id;
    }
    record_time("lm_head", now() - started_at);
}

void Decoder::record_time(const char* name, double seconds) {
    for (OpTime& entry : op_times_)
        if (entry.name == name) return void(entry.seconds += seconds);
    op_times_.push_back({name, seconds});
}

void plan_attention(
    AttentionPlan& plan, const Step& step, int heads_per_kv, int num_kv_heads, int head_dim, int num_threads) {
    plan.tiles.clear(), plan.split_index.clear(), plan.num_splits.clear(), plan.num_spans.clear();
    struct RowBlock { int sequence, first_row, num_rows, first_span, num_spans; };
    std::vector<RowBlock> row_blocks;
    int64_t cost = 0;
    // Whole tokens where possible: the rows of a token see the same keys.
    const int max_rows = heads_per_kv > MAX_TILE_ROWS ? MAX_TILE_ROWS : MAX_TILE_ROWS / heads_per_kv * heads_per_kv;
    for (int sequence = 0; sequence < step.num_seqs; sequence++) {
        const int tokens = step.cu_seqlens_q[sequence + 1] - step.cu_seqlens_q[sequence];
        const int length = step.seq_lens[sequence];
        for (int row = 0; row < tokens * heads_per_kv && length > 0; row += max_rows) {
            const int rows = std::min(max_rows, tokens * heads_per_kv - row);
            const int first = length - tokens + row / heads_per_kv;
            const int last = length - tokens + (row + rows - 1) / heads_per_kv;
            const int first_key = plan.kind.window && first >= plan.kind.window ? first - plan.kind.window + 1 : 0;
            const RowBlock row_block = {sequence, row, rows, first_key / SPAN, last / SPAN - first_key / SPAN + 1};
            row_blocks.push_back(row_block);
            cost += (int64_t)row_block.num_spans * num_kv_heads;
        }
    }
    // About 16 tiles for each thread, so that none of them waits long for the last one.
    const int64_t max_spans = std::max<int64_t>(1, cost / (16 * num_threads));  // of a tile
    size_t partial_index = 0;
    for (const RowBlock& block : row_blocks)
        for (int head = 0; head < num_kv_heads; head++) {
            const int num_parts =
                (int)std::min<int64_t>(block.num_spans, (block.num_spans + max_spans - 1) / max_spans);
            AttentionTile tile = {
                block.sequence, head, block.first_row, block.num_rows, block.first_span, block.num_spans, -1};
            if (num_parts <= 1) {
                plan.tiles.push_back(tile), plan.split_index.push_back(-1);
                continue;
            }
            for (int part = 0, span = 0; part < num_parts; part++) {
                const int count = block.num_spans / num_parts + (part < block.num_spans % num_parts);
                tile.first_span = block.first_span + span, tile.num_spans = count;
                tile.partial_index = (int32_t)(partial_index + (size_t)span * block.num_rows);
                plan.tiles.push_back(tile), plan.split_index.push_back((int32_t)plan.num_splits.size());
                span += count;
            }
            plan.num_splits.push_back(num_parts), plan.num_spans.push_back(block.num_spans);
            partial_index += (size_t)block.num_spans * block.num_rows;
        }
    plan.partial_floats = partial_index * (head_dim + 2);
}

}  // namespace chairlift
