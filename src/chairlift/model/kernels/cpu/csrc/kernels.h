// What passes between the decoder (compiled once) and the kernels (compiled once for every instruction set).
//
// Kernels are given tasks: half panels of a weight, ranges of rows, or items of attention. A task writes what no other
// task of the same operation writes, and what it writes of one row depends on that row alone: not on the rows beside
// it, on how tasks are shared among threads, or on their order. So a token's numbers are the same in every batch.
#pragma once

#include <cstddef>
#include <cstdint>

// What this file has of functions is compiled with the instructions of every set, so none may stay behind as a copy.
#define CHAIRLIFT_INLINE inline __attribute__((always_inline))

namespace chairlift {

// A weight [outputs, inputs] in panels of 64 outputs. A step is four bytes of each output: two bfloat16, or four int8.
//
//     panel 0: step 0: [64 outputs][4 bytes], step 1, ...      panel 1: ...
//
// int8 is stored as value + 128. Outputs are padded to whole panels and inputs to whole steps (groups) with zeros.
constexpr int PANEL = 64, HALF_PANEL = 32, STEP_BYTES = PANEL * 4, GROUP = 32;

enum WeightKind : int32_t { BFLOAT16 = 0, INT8_CHANNEL = 1, INT8_GROUP = 2 };

struct Weight {
    int32_t outputs, inputs;
    int32_t panels, steps;  // of a panel
    WeightKind kind;
    const uint8_t* data;    // panels * steps * STEP_BYTES, on a cache line
    const float* scales;    // INT8_CHANNEL: [panels * 64]
    const uint16_t* group_scales;  // INT8_GROUP, bfloat16: [panels][groups][64]
    CHAIRLIFT_INLINE size_t panel_bytes() const { return (size_t)steps * STEP_BYTES; }
    CHAIRLIFT_INLINE int32_t groups() const { return steps * 4 / GROUP; }
};

// Activations: bfloat16, or int8 with scale and sum of every row (INT8_CHANNEL) or group of a row (INT8_GROUP).
// Behind `inputs` a row goes on with zeros as far as the weight's padding.
struct Rows {
    const uint8_t* data;
    size_t stride;  // bytes between rows
    int32_t count;
    const float* scales;    // [count, 1 or groups]
    const int32_t* sums;    // likewise, of the int8, times -128: what the weights' offset of 128 adds, taken off
};

enum LinearMode : int32_t {
    STORE = 0,   // out float32 = product + bias
    ADD = 1,     // out float32 += product + bias
    GATED = 2,   // out bfloat16 = activation(gate) * up; of 32 outputs of the weight 16 are gates, 16 are ups
    LOGITS = 3,  // the best of each row, and products float32 of those rows that are kept
};

enum Activation : int32_t { SILU = 0, GELU = 1, GELU_TANH = 2 };

struct Best {
    float value;  // NaN where one of the row is NaN
    int32_t id;   // of equals the lowest
    CHAIRLIFT_INLINE bool is_beaten_by(const Best& other) const {
        if (value != value) return false;
        return other.value != other.value || other.value > value || (other.value == value && other.id < id);
    }
};

struct LinearCall {
    const Weight* weight;
    Rows rows;
    const float* bias;  // [panels * 64] or null
    LinearMode mode;
    Activation activation;
    void* out;
    size_t out_stride;  // elements between rows
    bool to_floats;     // of GATED: out is float32 instead of bfloat16
    const struct HeadRow* head;  // of LOGITS: [rows]
    int32_t words;               // of each HeadRow's `allowed`; outputs beyond are not allowed
};

// What is wanted of one row of the head.
struct HeadRow {
    float* logits;            // where they go, what is not allowed as -INFINITY; null: nowhere
    const uint32_t* allowed;  // one bit an output, lowest first; null: all are
};

// To bfloat16, to float32, or added to float32.
enum NormMode : int32_t { NORM_HALVES = 0, NORM_FLOATS = 1, NORM_ADD = 2 };

struct NormCall {
    const float* in;
    size_t in_stride;
    const float* weight;  // [width]
    float eps;
    int32_t width;
    NormMode mode;
    void* out;            // as the mode says
    size_t out_stride;
};

struct QuantizeCall {
    const void* in;       // float32 or bfloat16
    bool is_float;
    size_t in_stride;
    int32_t width;        // padded
    WeightKind kind;
    int8_t* out;
    size_t out_stride;
    float* scales;        // [count, 1 or width / GROUP]
    int32_t* sums;
};

struct EmbedCall {
    const int64_t* ids;
    const uint16_t* table;  // bfloat16 [vocabulary, width], or null where the packed head is the table
    const Weight* packed;
    int32_t width;
    float factor;
    float* out;
    size_t out_stride;
};

// Keys of a block and head: [block_size / 16][head_dim / 2][16 tokens][2]; values: [block_size / 2][head_dim][2].
// So both are read in vectors of pairs as `dot_pairs` wants them.
constexpr int KEY_TILE = 16, MAX_HEAD_DIM = 512;

struct Cache {
    uint16_t* keys;
    uint16_t* values;
    int32_t block_size, kv_heads, head_dim;
    CHAIRLIFT_INLINE size_t head_elements() const { return (size_t)block_size * head_dim; }
    CHAIRLIFT_INLINE size_t block_elements() const { return head_elements() * kv_heads; }
};

struct HeadsCall {
    const float* in;        // rows of query heads, key heads, value heads
    size_t in_stride;
    int32_t heads;          // of queries
    const float* norm;      // [heads + kv_heads, head_dim], or null
    float eps;
    const float* cosines;   // [positions, head_dim / 2]
    const float* sines;
    const int64_t* positions;
    const int64_t* slots;   // block * block_size + offset; below 0 nothing is written
    Cache cache;
    uint16_t* queries;      // bfloat16 [rows, heads * head_dim]
    size_t queries_stride;
};

// One item: some rows of one sequence and one key head, over a range of spans of SPAN keys.
constexpr int SPAN = 256, MAX_ITEM_ROWS = 24;

struct AttendItem {
    int32_t sequence, kv_head;
    int32_t first_row, row_count;   // row = (token of the sequence's new ones) * shared heads + head
    int32_t first_span, span_count;
    int32_t partial;                // where its spans' partial results go; -1: it holds all spans and writes the result
};

struct AttendCall {
    const uint16_t* queries;   // bfloat16 [tokens, heads * head_dim]
    size_t queries_stride;
    void* out;                 // likewise, bfloat16 or float32
    bool to_floats;
    size_t out_stride;
    Cache cache;
    const int32_t* block_table;
    int32_t max_blocks;
    const int32_t* cu_q;
    const int32_t* seq_lens;
    int32_t heads;
    float scale, softcap;      // softcap 0: none
    int32_t window;            // 0: none
    const float* sinks;        // [heads] or null
    const AttendItem* items;
    float* partials;           // [span][row][head_dim + 2]: sums, then largest score * log2 e and total
};

// Logits are looked at in blocks of so many, of which the largest is known.
constexpr int DRAW_BLOCK = 64;

struct Kernels {
    const char* name;
    void (*embed)(const EmbedCall&, int begin, int end);
    void (*norm)(const NormCall&, int begin, int end);
    void (*quantize)(const QuantizeCall&, int begin, int end);
    // Half panels [half, half + count) of the weight, count 1 or 2 (then half is even), against all rows; `ahead` is a
    // panel that will be wanted next, or null. `best` is the caller's own: [rows] of all outputs, then [rows] of those
    // that are allowed where not all are.
    void (*linear)(const LinearCall&, int half, int count, const uint8_t* ahead, size_t ahead_bytes, Best* best);
    void (*heads)(const HeadsCall&, int begin, int end);
    // `after` is the item that will be attended next, or null: its first keys are fetched meanwhile.
    void (*attend)(const AttendCall&, const AttendItem&, const AttendItem* after);
    // Joins the partial results of all `spans` of an item's rows, in order.
    void (*join)(const AttendCall&, const AttendItem&, int spans);
    void (*peaks)(const float* logits, int count, float* blocks);
    void (*weigh)(const float* logits, int count, double peak, double temperature, double* weights);
};

const Kernels* kernels_portable();
#if defined(__x86_64__)
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();
const Kernels* kernels_avx512_bf16();
#endif

}  // namespace chairlift
