// Decoder: runs all layers of a step in one call, as a list of operations over buffers.
//
// Python iterates over a model's layers once and adds their operations; a step brings the tokens.
//
//     ids -> embed -> [x] -> norm -> [n] -> linear -> [p] -> rope_cache -> [q], cache
//                      ^                                                    |
//                      +---------- linear, added to [x] <- [a] <- attention +
//
// An operation is a number of tasks. The threads of the pool take tasks as they become free, and all threads wait at a
// barrier between two operations.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels.h"
#include "step.h"
#include "tensors.h"
#include "thread_pool.h"

namespace chairlift {

// The lm_head's weight, and the outputs of each row.
struct LMHeadCall {
    const Weight* weight;
    const LogitsRow* rows;  // [count]
    int32_t mask_words;     // words per bitmask
    float* values;          // [2 * count] max logits over all tokens, then over the allowed tokens
    int64_t* ids;           // [2 * count] their token ids
};

enum BufferKind : int32_t { F32 = 0, BF16 = 1, QUANTIZED = 2 };

// Activations [row][stride] of up to as many tokens as Decoder::reserve() allocated.
struct Buffer {
    BufferKind kind;
    int32_t width;
    WeightKind quantization = BFLOAT16;
    int32_t rows_per_token = 1;
    size_t stride = 0;  // elements
    void* data = nullptr;
    float* scales = nullptr;
    int32_t* sums = nullptr;
    size_t bytes(size_t rows) const;
    size_t scales_per_row() const;
    size_t sums_per_row() const;
    float* f32() const { return (float*)data; }
    Activations rows(int count, size_t first = 0) const;
    void clear(size_t row) const { memset((char*)data + row * bytes(1), 0, bytes(1)); }
};

// Layers with the same layer group and window share an attention plan.
struct AttentionKind {
    int32_t group, window;
};

// The attention tiles of one kind in this step.
//
// A row block is some query rows of one sequence and one KV head. A row block with many spans is split into several
// tiles, whose partial results are combined (flash-decoding).
struct AttentionPlan {
    AttentionKind kind;
    std::vector<AttentionTile> tiles;
    std::vector<int32_t> split_index;  // by tile: index of its split row block; -1: the tile is a whole row block
    std::vector<int32_t> num_splits;   // by split row block: its tiles
    std::vector<int32_t> num_spans;    // by split row block: its spans
    size_t partial_floats = 0;         // floats of all partial results
};

class Decoder;

struct Operation {
    virtual ~Operation() = default;
    virtual const char* name() const = 0;
    virtual int num_tasks(const Step& step) const = 0;
    // Runs tasks [begin, end). next: the task that this thread runs after them, or -1.
    virtual void run(const Step& step, int begin, int end, int next, int thread_index) = 0;
    // Returns how many tasks a thread takes at once.
    virtual int chunk_size(int remaining, int num_threads) const {
        return remaining > 2 * num_threads ? remaining / (2 * num_threads) : 1;
    }
    // Runs in the calling thread, before the first operation of a step.
    virtual void prepare(const Step&) {}
};

struct OpTime {
    const char* name;
    double seconds;
};

class Decoder {
public:
    Decoder(ThreadPool& pool, const Kernels& kernels) : pool(pool), kernels(kernels) {}
    ~Decoder();

    int add_buffer(BufferKind kind, int width, WeightKind quantization, int rows_per_token = 1);
    void add(std::unique_ptr<Operation> operation) { operations_.push_back(std::move(operation)); }
    int add_attention_plan(AttentionKind kind);

    // Allocates the buffers for steps of up to `tokens` tokens. Throws std::bad_alloc.
    void reserve(int tokens);
    // Runs all operations. Throws std::bad_alloc before the first of them.
    void run(const Step& step);

    // Runs all operations with a caller's memory in the place of two buffers of the same kinds. Throws as run() does.
    void run_on(const Step& step, int in, void* in_data, size_t in_stride, int out, void* out_data, size_t out_stride);

    // Multiplies rows by the lm_head. Rows are quantized first if the lm_head is. row_indices: rows.count of them, or
    // null for the first. Throws std::bad_alloc.
    void lm_head(const Rows& rows, const int32_t* row_indices, const LMHeadCall& call);

    const std::vector<OpTime>& op_times() const { return op_times_; }
    void clear_op_times() { op_times_.clear(); }

    ThreadPool& pool;
    const Kernels& kernels;
    std::vector<Buffer> buffers;
    std::vector<AttentionPlan> attention_plans;
    std::vector<std::shared_ptr<struct ExpertPlan>> expert_plans;  // of the routers
    std::vector<float> partials;
    PlannedStep planned_step;

private:
    void run_worker(const Step& step, int thread_index);
    void record_time(const char* name, double seconds);

    std::vector<std::unique_ptr<Operation>> operations_;
    std::unique_ptr<std::atomic<int>[]> next_tasks_;
    size_t num_counters_ = 0;
    std::vector<OpTime> op_times_;
};

// Plans the tiles of one kind of attention: enough that every thread has work until the end.
void plan_attention(
    AttentionPlan& plan, const Step& step, int heads_per_kv, int num_kv_heads, int head_dim, int num_threads);

}  // namespace chairlift
