// A decoder as a list of operations over buffers, run by a pool: all layers of a step in one call.
//
//     Python walks a model's layers once and adds an operation for each; a step gives them its tokens.
//
//     ids -> embed -> [x] -> norm -> [n] -> linear -> [p] -> heads -> [q], cache -> attend -> [a] -> linear, added to [x]
//                      ^                                                                              |
//                      +------------------------------------------------------------------------------+
//
// An operation is cut into tasks, which members of the pool take as they become free; between two operations all meet.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels.h"
#include "pool.h"
#include "step.h"

namespace chairlift {

// What a head is multiplied by, and what there is to say of each row.
struct HeadCall {
    const Weight* weight;
    const HeadRow* wanted;  // [count]
    int32_t words;
    float* values;          // [2 * count] the largest logits of all, then of those that are allowed
    int64_t* ids;           // [2 * count] where they are
};

enum BufferKind : int32_t { FLOATS = 0, HALVES = 1, QUANTIZED = 2 };

// Activations of up to `reserved` tokens, [token][stride].
struct Buffer {
    BufferKind kind;
    int32_t width;
    WeightKind quantization = BFLOAT16;
    size_t stride = 0;  // elements
    void* data = nullptr;
    float* scales = nullptr;
    int32_t* sums = nullptr;
    size_t bytes(size_t tokens) const;
    size_t runs() const;  // scales of a row
    float* floats() const { return (float*)data; }
    uint16_t* halves() const { return (uint16_t*)data; }
    Rows rows(int count) const;
    void clear(size_t row) const { memset((char*)data + row * bytes(1), 0, bytes(1)); }
};

// Attention as layers of one kind share it.
struct AttendKind {
    int32_t group, window;
};

// The items of one kind of attention in this step.
struct Items {
    AttendKind kind;
    std::vector<AttendItem> items;
    std::vector<int32_t> piece;      // of each item: which tile of rows it is a part of, -1 where it is the whole
    std::vector<int32_t> pieces;     // of each tile in parts: how many items
    std::vector<int32_t> spans;      // and how many spans
    size_t partial_floats = 0;
};

class Decoder;

struct Operation {
    virtual ~Operation() = default;
    virtual const char* name() const = 0;
    virtual int tasks(const Step& step) const = 0;
    // Tasks [begin, end) of it; `next` is a task that this member will do after them, -1 where there is none.
    virtual void work(const Step& step, int begin, int end, int next, int member) = 0;
    virtual int grain(int left, int members) const { return left > 2 * members ? left / (2 * members) : 1; }
    virtual void prepare(const Step&) {}
};

struct Spent {
    const char* name;
    double seconds;
};

class Decoder {
public:
    Decoder(Pool& pool, const Kernels& kernels) : pool(pool), kernels(kernels) {}
    ~Decoder();

    int add_buffer(BufferKind kind, int width, WeightKind quantization);
    void add(std::unique_ptr<Operation> operation) { operations_.push_back(std::move(operation)); }
    int add_kind(AttendKind kind);

    // Makes room for steps of so many tokens. Throws std::bad_alloc.
    void reserve(int tokens);
    // Runs all operations. Throws std::bad_alloc before any of them.
    void run(const Step& step);

    // Rows [count, weight.inputs], `stride` apart (bfloat16; quantised first where the head is), times a head; those at
    // these places, or where that is null the first ones. Throws std::bad_alloc.
    void head(const uint16_t* rows, size_t stride, const int32_t* places, int count, const HeadCall& call);

    const std::vector<Spent>& spent() const { return spent_; }
    void forget_spent() { spent_.clear(); }

    Pool& pool;
    const Kernels& kernels;
    std::vector<Buffer> buffers;
    std::vector<Items> items;
    std::vector<float> partials;
    PlannedStep planned;

private:
    void take_part(const Step& step, int member);
    void spend(const char* name, double seconds);

    std::vector<std::unique_ptr<Operation>> operations_;
    std::unique_ptr<std::atomic<int>[]> handed_out_;
    size_t counters_ = 0;
    std::vector<Spent> spent_;
};

// Plans the items of one kind of attention: enough of them that all members have work to the end.
void plan_items(Items& items, const Step& step, int shared_heads, int kv_heads, int head_dim, int members);

}  // namespace chairlift
