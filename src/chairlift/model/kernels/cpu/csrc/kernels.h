// Interface between the decoder (compiled once) and the kernels (compiled once per instruction set).
//
// A kernel runs tasks: half panels of a weight, ranges of rows, or attention tiles. No two tasks of an operation write
// the same memory. The result of a row depends on that row alone: not on its neighbours in the batch, not on the
// assignment of tasks to threads, not on the order of tasks. So a token's values have the same bits in every batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// The functions in this header are compiled once per instruction set. They must be inlined: the linker would keep one
// out-of-line copy, which could have instructions that this processor lacks.
#define CHAIRLIFT_INLINE inline __attribute__((always_inline))

namespace chairlift {

// A weight [outputs, inputs] is stored in panels of 64 outputs. A step holds four bytes per output: one float32, two
// bfloat16, two float16, four int8, or codes of a group.
//
//     panel 0: step 0: [64 outputs][4 bytes], step 1, ...      panel 1: ...
//
// Of float16, a step is [2 inputs][64 outputs]: they are widened without being moved. An int8 value is stored as value
// + 128. Zeros pad the outputs to whole panels and the inputs to whole steps, or to whole groups.
//
// A group of codes has as many steps as a code has bits. A quad is four inputs, one for each byte of a word. Four steps
// hold the lower four bits of a group, two quads each: the lower halves of the bytes are the first. A fifth bit has one
// more step, with bit q of a byte for quad q; two more bits have two steps of four quads, with bits 2 q and 2 q + 1.
constexpr int PANEL = 64, HALF_PANEL = 32, STEP_BYTES = PANEL * 4, GROUP = 32, QUADS = GROUP / 4;

// Groups with a common factor of their scales, in the kinds that have it.
constexpr int SUPER_GROUPS = 8;

// The kinds with groups, and the value of a code (ggml has types of the same names and values; Q4_1 is INT4_GROUP):
//
//     INT8_GROUP, Q8_0               (code - 128) * scale                   code of 8 bits
//     Q4_0, Q5_0                     (code - 8 or 16) * scale
//     INT4_GROUP, Q5_1, Q4_K, Q5_K   code * scale - minimum
//     INT6_GROUP                     (code - 32) * scale
//     Q6_K                           (code - 32) * scale                    two scales for a group
//     IQ4_NL, IQ4_XS, MXFP4          table[code] * scale                    code of 4 bits
//
// Scales and minima are float16, those of INT8_GROUP, INT6_GROUP and MXFP4 bfloat16. Those of Q4_K, Q5_K, Q6_K and
// IQ4_XS are the product of an int8 and a float16 that SUPER_GROUPS groups share.
enum WeightKind : int32_t {
    BFLOAT16 = 0, INT8_CHANNEL = 1, INT8_GROUP = 2, FLOAT32 = 3, FLOAT16 = 4, INT4_GROUP = 5, Q4_0 = 6, Q5_0 = 7,
    Q5_1 = 8, Q8_0 = 9, Q4_K = 10, Q5_K = 11, Q6_K = 12, IQ4_NL = 13, IQ4_XS = 14, MXFP4 = 15,
    INT6_GROUP = 16,
};

// Whether there is a scale for each GROUP of inputs, or two.
CHAIRLIFT_INLINE constexpr bool has_groups(WeightKind kind) { return kind == INT8_GROUP || kind >= INT4_GROUP; }

// Whether the rows that are multiplied are int8.
CHAIRLIFT_INLINE constexpr bool is_quantized(WeightKind kind) { return kind == INT8_CHANNEL || has_groups(kind); }

// The kind that says how those rows are quantized: INT8_CHANNEL or INT8_GROUP.
CHAIRLIFT_INLINE constexpr WeightKind row_kind(WeightKind kind) { return has_groups(kind) ? INT8_GROUP : kind; }

// Bits of a code, of the kinds with groups.
CHAIRLIFT_INLINE constexpr int code_bits(WeightKind kind) {
    if (kind == INT8_GROUP || kind == Q8_0) return 8;
    if (kind == Q5_0 || kind == Q5_1 || kind == Q5_K) return 5;
    return kind == Q6_K || kind == INT6_GROUP ? 6 : 4;
}

// The code of zero, of the kinds without minima and without a table.
CHAIRLIFT_INLINE constexpr int code_offset(WeightKind kind) {
    return kind == Q4_0 ? 8 : kind == Q5_0 ? 16 : kind == Q6_K || kind == INT6_GROUP ? 32 : 128;
}

CHAIRLIFT_INLINE constexpr bool has_minima(WeightKind kind) {
    return kind == INT4_GROUP || kind == Q5_1 || kind == Q4_K || kind == Q5_K;
}

CHAIRLIFT_INLINE constexpr bool has_table(WeightKind kind) {
    return kind == IQ4_NL || kind == IQ4_XS || kind == MXFP4;
}

CHAIRLIFT_INLINE constexpr bool has_super_scales(WeightKind kind) {
    return kind == Q4_K || kind == Q5_K || kind == Q6_K || kind == IQ4_XS;
}

CHAIRLIFT_INLINE constexpr bool has_bf16_scales(WeightKind kind) {
    return kind == INT8_GROUP || kind == INT6_GROUP || kind == MXFP4;
}

CHAIRLIFT_INLINE constexpr int scales_per_group(WeightKind kind) { return kind == Q6_K ? 2 : 1; }

// The values of codes in the order of codes, + 128.
alignas(16) constexpr uint8_t IQ4_TABLE[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t MXFP4_TABLE[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                                 128, 127, 126, 125, 124, 122, 120, 116};

CHAIRLIFT_INLINE constexpr const uint8_t* code_table(WeightKind kind) {
    return kind == MXFP4 ? MXFP4_TABLE : IQ4_TABLE;
}

// Inputs of a step, of the kinds without groups.
CHAIRLIFT_INLINE constexpr int inputs_per_step(WeightKind kind) {
    return kind == INT8_CHANNEL ? 4 : kind == FLOAT32 ? 1 : 2;
}

// Numbers in memory. A bfloat16 is its bits, an int8 of a weight is value + 128.
using Bfloat16 = uint16_t;
using Int8 = uint8_t;
struct Code {};  // an unsigned byte of at most 6 bits
struct Float16 {
    uint16_t bits;
};

struct Weight {
    int32_t outputs, inputs;
    int32_t panels, steps;         // steps: per panel
    WeightKind kind;
    const uint8_t* data;           // panels * steps * STEP_BYTES, aligned to a cache line
    const float* scales;           // INT8_CHANNEL: [panels * 64]
    const uint16_t* group_scales;  // [panels][groups][64], or with super-scales [panels][groups / SUPER_GROUPS][64]
    const uint16_t* group_minima;  // the same; null: no minima
    const int8_t* small_scales;    // super-scales: [panels][groups * scales_per_group][64]
    const int8_t* small_minima;    // the same
    CHAIRLIFT_INLINE size_t panel_bytes() const { return (size_t)steps * STEP_BYTES; }
    CHAIRLIFT_INLINE int32_t padded_inputs() const {
        return has_groups(kind) ? groups() * GROUP : steps * inputs_per_step(kind);
    }
    CHAIRLIFT_INLINE int32_t groups() const { return steps / code_bits(kind); }
};

// Sums of a quantized row of so many groups: first those of its groups, then those of the first halves of its groups.
CHAIRLIFT_INLINE constexpr int sums_of_groups(int groups) { return 2 * groups; }

// Input rows of a linear operation: bfloat16, float32 (FLOAT32, FLOAT16), or int8 with a scale and a sum per row
// (INT8_CHANNEL), or a scale and two sums per group of a row (the kinds with groups). Zeros follow the `inputs` values of
// a row up to the weight's padded inputs.
struct Activations {
    const uint8_t* data;
    size_t stride;        // bytes between rows
    int32_t count;
    const float* scales;  // [count, 1 or groups]
    const int32_t* sums;  // [count, 1 or sums_of_groups]: -128 * the sum of int8 values; it cancels an offset of 128
};

enum LinearMode : int32_t {
    STORE = 0,   // out float32 = product + bias
    ADD = 1,     // out float32 += product + bias
    GATED = 2,   // out = activation(gate) * up; of 32 weight outputs, 16 are gates and 16 are ups
    ROUND = 4,   // out bfloat16 = product + bias
    LOGITS = 3,  // the argmax of each row, and float32 logits of the rows that need them
};

// CLAMPED_SWIGLU is no function of the gate alone: (up + 1) * gate * sigmoid(1.702 * gate), where the gate is at most
// SWIGLU_LIMIT and the up within -SWIGLU_LIMIT and SWIGLU_LIMIT.
enum Activation : int32_t { SILU = 0, GELU = 1, GELU_TANH = 2, CLAMPED_SWIGLU = 3 };

constexpr float SWIGLU_LIMIT = 7.0f, SWIGLU_SLOPE = 1.702f;

struct ArgMax {
    float value;  // NaN if the row has a NaN
    int32_t id;   // the lowest of equal values
    CHAIRLIFT_INLINE bool is_less_than(const ArgMax& other) const {
        if (value != value) return false;
        return other.value != other.value || other.value > value || (other.value == value && other.id < id);
    }
};

struct LinearCall {
    const Weight* weight;
    Activations rows;
    const float* bias;                    // [panels * 64] or null
    LinearMode mode;
    Activation activation;
    void* out;
    size_t out_stride;                    // elements between rows
    bool out_is_f32;                      // GATED: out is float32 instead of bfloat16
    const struct LogitsRow* logits_rows;  // LOGITS: [rows]
    int32_t mask_words;                   // LOGITS: words per bitmask; later outputs are not allowed
};

// Outputs of the lm_head for one row.
struct LogitsRow {
    float* logits;            // destination, -INFINITY for an output that is not allowed; null: logits are not written
    const uint32_t* bitmask;  // one bit per output, lowest bit first; null: all outputs are allowed
};

// Output of a norm: bfloat16, float32, or added to float32.
enum NormMode : int32_t { NORM_BF16 = 0, NORM_F32 = 1, NORM_ADD = 2 };

struct NormCall {
    const void* in;       // float32 or bfloat16
    bool in_is_bf16;
    size_t in_stride;
    const float* weight;  // [width]; null: the numbers are converted only
    float eps;
    int32_t width;
    NormMode mode;
    void* out;            // float32, or bfloat16 for NORM_BF16
    size_t out_stride;
    float factor = 1.0f;  // NORM_ADD: of the sum
};

struct QuantizeCall {
    const void* in;       // float32 or bfloat16
    bool in_is_f32;
    size_t in_stride;
    int32_t width;        // padded
    WeightKind kind;
    int8_t* out;
    size_t out_stride;
    float* scales;        // as in Activations
    int32_t* sums;
};

struct EmbedCall {
    const int64_t* ids;
    const void* table;      // [vocabulary, width]; null: `packed` (the tied lm_head) is the table
    WeightKind table_kind;  // BFLOAT16, FLOAT16 or FLOAT32
    const Weight* packed;
    int32_t width;
    float factor;
    float* out;
    size_t out_stride;
};

// Keys of a block and head: [block_size / 16][head_dim / 2][16 tokens][2]. Values: [block_size / 2][head_dim][2].
// Both are loaded as vectors of pairs, the operand format of `dot_pairs`. Of float32 there is one where a pair is:
// [block_size / 16][head_dim][16 tokens] and [block_size][head_dim].
constexpr int KEY_TILE = 16, MAX_HEAD_DIM = 512;

struct KVCache {
    void* keys;  // bfloat16 or float32
    void* values;
    bool is_f32;
    int32_t block_size, num_kv_heads, head_dim;
    size_t block_elements;  // from a block to the next one, whose keys or values of other layers may lie between
    CHAIRLIFT_INLINE size_t head_elements() const { return (size_t)block_size * head_dim; }
};

// Writes the key of one head at an offset of a block; `to`: the block's keys of that head.
template <typename Number>
CHAIRLIFT_INLINE void write_key(Number* to, int offset, int head_dim, const Number* key) {
    constexpr int PER_WORD = 4 / sizeof(Number);
    to += offset / KEY_TILE * KEY_TILE * head_dim + offset % KEY_TILE * PER_WORD;
    for (int i = 0; i < head_dim; i += PER_WORD) memcpy(to + i * KEY_TILE, key + i, 4);
}

// The same for a value.
template <typename Number>
CHAIRLIFT_INLINE void write_value(Number* to, int offset, int head_dim, const Number* value) {
    constexpr int PER_WORD = 4 / sizeof(Number);
    to += offset / PER_WORD * head_dim * PER_WORD + offset % PER_WORD;
    for (int i = 0; i < head_dim; i++) to[PER_WORD * i] = value[i];
}

// out = out * sigmoid(gate)
struct GateCall {
    const float* gate;
    size_t gate_stride;
    int32_t width;
    void* out;       // float32, or bfloat16
    bool out_is_f32;
    size_t out_stride;
};

// out = activation(gate) * up
struct ActivationCall {
    const float* gate;
    size_t gate_stride;
    const float* up;
    size_t up_stride;
    Activation activation;  // none but of the gate alone
    int32_t width;
    void* out;              // float32, or bfloat16
    bool out_is_f32;
    size_t out_stride;
};

struct RopeCacheCall {
    const float* in;        // rows of query heads, key heads, value heads
    size_t in_stride;
    int32_t num_heads;      // query heads
    int32_t num_keys;       // key heads; 0 where queries read the keys and values of another layer
    int32_t first_value;    // head of the row; the first key head where values are keys before norm and rotation
    const float* norm;      // [num_heads + num_keys, head_dim], or null
    float eps;
    bool norms_values;      // divides each value head by its root mean square
    bool norm_is_joint;     // one root mean square of all query heads, and one of all key heads
    const float* cosines;   // [positions, head_dim / 2]
    const float* sines;
    const float* query_scales;  // [positions], factors on queries, or null
    const int64_t* positions;
    const int64_t* slot_mapping;  // block * block_size + offset; below 0: keys and values are not written
    KVCache cache;
    void* queries;          // [rows, num_heads * head_dim], of the cache's dtype
    size_t queries_stride;
};

// A span is SPAN consecutive keys. A tile is up to MAX_TILE_ROWS query rows of one sequence and one KV head over a
// range of spans.
constexpr int SPAN = 256, MAX_TILE_ROWS = 24;

struct AttentionTile {
    int32_t sequence, kv_head;
    int32_t first_row, num_rows;  // row = (index of the new token) * (query heads per KV head) + head
    int32_t first_span, num_spans;
    int32_t partial_index;        // first partial result of its spans; -1: the tile has all spans and writes the output
};

struct AttentionCall {
    const void* queries;       // [tokens, num_heads * head_dim], of the cache's dtype
    size_t queries_stride;
    void* out;                 // same shape, bfloat16 or float32
    bool out_is_f32;
    size_t out_stride;
    KVCache cache;
    const int32_t* block_table;
    int32_t max_blocks;
    const int32_t* cu_seqlens_q;
    const int32_t* seq_lens;
    int32_t num_heads;
    float scale, softcap;      // softcap 0: no cap
    int32_t window;            // 0: no window
    const float* sinks;        // [num_heads] or null
    float* partials;           // [span][row][head_dim + 2]: weighted sums, max score * log2 e, total of the weights
};

// out = factor * (the outputs of a row's experts times their factors, added by rank, and that of the shared expert).
struct ExpertSum {
    const float* outputs;    // [pairs]
    size_t outputs_stride;
    const int32_t* places;   // [rows * experts_per_row] the row of each pair in `outputs`
    const float* factors;    // [rows * experts_per_row]
    int32_t experts_per_row, width;
    const float* shared;     // [rows], or null
    size_t shared_stride;
    const float* gates;      // [rows] the factor of `shared` is the sigmoid; null: it is 1
    size_t gates_stride;
    float factor;
    bool adds;               // to what is in `out`
    float* out;
    size_t out_stride;
};

// The states of running sequences (state_cache.py): entry i is that of slot i, and checkpoints follow the slots.
//
// A save copies the states of a row, after so many of its new tokens, to an entry.
struct StateSave {
    int32_t row, num_tokens, entry;
};

// The rows of a step, as layers with a state need them.
struct StateRows {
    const int32_t* cu_seqlens_q;
    const int32_t* seq_lens;
    const int32_t* slots;  // entry of each row
    const StateSave* saves;
    int32_t num_saves;
    CHAIRLIFT_INLINE int count(int row) const { return cu_seqlens_q[row + 1] - cu_seqlens_q[row]; }
    // Whether a row starts at position 0: its states are zeros, whatever its entry holds.
    CHAIRLIFT_INLINE bool is_fresh(int row) const { return seq_lens[row] <= count(row); }
};

// Channels of a task of the convolution.
constexpr int CONVOLUTION_CHANNELS = 256;

// A depthwise causal convolution with SiLU, or with gates: out = C * convolution(B * x).
struct ConvolutionCall {
    StateRows rows;
    const float* in;       // [tokens, stride]
    size_t in_stride;
    int32_t first_column;  // of the input's channels; with gates, B, C and x follow each other from there
    bool is_gated;
    const float* weights;  // [width, channels], the last row for the token itself
    const float* bias;     // [channels] or null
    int32_t width, channels;
    float* states;         // [entries, width - 1, channels], the oldest input first
    void* out;             // float32, or bfloat16
    bool out_is_f32;
    size_t out_stride;
};

enum RecurrenceKind : int32_t { DELTA_RULE = 0, STATE_SPACE = 1 };

// Widths of keys and values must be multiples of STATE_WIDTH. A head's state is in panels of so many columns, each a
// cache line a row: [value_dim / STATE_WIDTH][key_dim][STATE_WIDTH]. So some columns of all rows fit the L1 cache.
constexpr int STATE_WIDTH = 16, MAX_KEY_DIM = 256;

// The parts of a recurrence that are the same in every step. The input's columns are the convolution's channels. Of a
// state space layer, C is the query, B the key and x the value.
struct RecurrenceShape {
    RecurrenceKind kind;
    int32_t num_key_heads, num_heads;        // each key head serves num_heads / num_key_heads heads in a row
    int32_t key_dim, value_dim;
    int32_t query_column, key_column, value_column;
    int32_t decay_column, beta_column;       // of the projection: a and b of the delta rule, dt of a state space layer
    const float* decay_rates;                // [num_heads] below 0
    const float* dt_bias;                    // [num_heads]
    const float* skips;                      // STATE_SPACE: [num_heads]
    float min_dt, max_dt;                    // STATE_SPACE
};

struct RecurrenceCall {
    RecurrenceShape shape;
    StateRows rows;
    const float* in;          // [tokens, stride], the convolution's output
    size_t in_stride;
    const float* projection;  // [tokens, stride]
    size_t projection_stride;
    float* states;            // [entries, num_heads], each in panels
    float* out;               // [tokens, num_heads * value_dim]
    size_t out_stride;
    CHAIRLIFT_INLINE size_t head_elements() const { return (size_t)shape.key_dim * shape.value_dim; }
    CHAIRLIFT_INLINE float* state_of(int entry, int head) const {
        return states + ((size_t)entry * shape.num_heads + head) * head_elements();
    }
};

// gates_first: out = norm(in * activation(gate)) * weight, else norm(in) * weight * activation(gate), over each group.
struct GatedNormCall {
    const float* in;
    size_t in_stride;
    const float* gate;
    size_t gate_stride;
    const float* weight;  // [width]
    int32_t width, group_width;
    float eps;
    bool gates_first, is_sigmoid;
    void* out;            // float32, or bfloat16
    bool out_is_f32;
    size_t out_stride;
};

// Logits per block; sampling keeps the largest logit of each block.
constexpr int LOGITS_BLOCK = 64;

struct Kernels {
    const char* name;
    void (*embed)(const EmbedCall&, int begin, int end);
    void (*norm)(const NormCall&, int begin, int end);
    void (*quantize)(const QuantizeCall&, int begin, int end);
    // Multiplies all rows by the half panels [half, half + count) of the weight. count is 1 or 2; with 2, half is even.
    // ahead: the panel that this thread multiplies next, or null; it is prefetched.
    // argmax: memory of the calling thread, [rows] over all outputs, then [rows] over the outputs that the mask allows.
    void (*linear)(const LinearCall&, int half, int count, const uint8_t* ahead, size_t ahead_bytes, ArgMax* argmax);
    void (*rope_cache)(const RopeCacheCall&, int begin, int end);
    // next: the tile that this thread computes next, or null; its first keys are prefetched.
    void (*attention)(const AttentionCall&, const AttentionTile&, const AttentionTile* next);
    // Combines the partial results of all `spans` of a row block, in order.
    void (*combine)(const AttentionCall&, const AttentionTile&, int spans);
    void (*sum_experts)(const ExpertSum&, int begin, int end);
    // One row of a step, channels [begin, end); multiples of STATE_WIDTH.
    void (*convolution)(const ConvolutionCall&, int row, int begin, int end);
    // One row of a step and one head. ahead: the state that this thread computes next, or null; it is prefetched.
    void (*recurrence)(const RecurrenceCall&, int row, int head, const float* ahead);
    void (*multiply_by_gate)(const GateCall&, int begin, int end);
    void (*multiply_activated)(const ActivationCall&, int begin, int end);
    void (*gated_norm)(const GatedNormCall&, int begin, int end);
    void (*block_max)(const float* logits, int count, float* block_max);
    void (*exp_weights)(const float* logits, int count, double max_logit, double temperature, double* weights);
    // Returns the multiply-adds per second of one thread without memory accesses.
    double (*peak_rate)(WeightKind kind);
};

// Weak, hence null where the library was compiled without the instruction set.
#define CHAIRLIFT_WEAK __attribute__((weak))
CHAIRLIFT_WEAK const Kernels* kernels_portable();
CHAIRLIFT_WEAK const Kernels* kernels_avx2();
CHAIRLIFT_WEAK const Kernels* kernels_avx2_vnni();
CHAIRLIFT_WEAK const Kernels* kernels_avx512();
CHAIRLIFT_WEAK const Kernels* kernels_avx512_bf16();
CHAIRLIFT_WEAK const Kernels* kernels_amx_bf16();
CHAIRLIFT_WEAK const Kernels* kernels_neon();
CHAIRLIFT_WEAK const Kernels* kernels_neon_dotprod();

}  // namespace chairlift
