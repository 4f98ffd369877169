// Runs operations of the native kernels for another processor, in an emulator: test_neon.py compiles it with their
// sources, writes operations to its input and reads results from its output.
//
//     operation   int32 fields, then data
//     result      the numbers of the output
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>

#include "kernels.h"
#include "pack.h"
#include "step.h"

using namespace chairlift;

#define API extern "C"
API int chairlift_has(const char* name);
API void* chairlift_pool_new(const int32_t* cpus, int count);
API int chairlift_pack(
    void* pool, const Weight* weight, const void* rows, int is_f32, int count, int placement, int first, double* errors);
API int64_t chairlift_pack_blocks(
    void* pool, const Weight* weight, const void* rows, size_t row_bytes, const int32_t* order, int count,
    int placement, int first);
API int chairlift_multiply(
    void* pool, const char* instruction_set, const Weight* weight, const float* bias, int is_gated, int activation,
    const void* rows, int is_f32, size_t stride, int count, void* out, size_t out_stride);
API int chairlift_rms_norm(
    void* pool, const char* instruction_set, const void* rows, int is_f32, size_t stride, int count, int width,
    const float* factors, float eps, void* out, size_t out_stride);
API void* chairlift_decoder_new(void* pool, const char* instruction_set);
API int chairlift_add_buffer(void* decoder, int kind, int width, int quantization);
API void chairlift_add_attention(
    void* decoder, int in, int out, int group, int cache_index, int num_heads, int num_kv_heads, int head_dim,
    int block_size, size_t block_elements, float scale, float softcap, int window, const float* sinks);
API void chairlift_add_rope_cache(
    void* decoder, int in, int out, int group, int cache_index, int num_heads, int num_kv_heads, int head_dim,
    int block_size, size_t block_elements, int num_keys, int num_values, const float* norm, float eps, int norms_values,
    int norm_is_joint, const float* cosines, const float* sines, const float* query_scales);
API void chairlift_add_embed(
    void* decoder, const void* table, int table_kind, const Weight* packed, int width, float factor, int out);
API void chairlift_add_convolution(
    void* decoder, int in, int out, int layer, int first_column, int channels, int width, const float* weights,
    const float* bias, int is_gated);
API void chairlift_add_recurrence(
    void* decoder, int in, int projection, int out, int layer, const RecurrenceShape* shape);
API void chairlift_add_gated_norm(
    void* decoder, int in, int gate, int gate_column, int width, int group_width, const float* weight, float eps,
    int gates_first, int is_sigmoid, int out);
API int chairlift_reserve(void* decoder, int tokens);
API int chairlift_top_k(
    void* pool, const char* instruction_set, const float* logits, int rows, int vocabulary, size_t stride, int count,
    float* values, int64_t* ids);
API int chairlift_logsumexp(
    void* pool, const char* instruction_set, const float* logits, int rows, int vocabulary, size_t stride,
    double* sums);
API int chairlift_store_kv(
    void* pool, void* cached_keys, void* cached_values, int is_f32, int block_size, int num_kv_heads, int head_dim,
    size_t block_elements, const void* keys, int64_t key_token_stride, int64_t key_head_stride, const void* values,
    int64_t value_token_stride, int64_t value_head_stride, const int64_t* slot_mapping, int count);
API int chairlift_run_on(
    void* decoder, const Step* step, int in, void* in_data, size_t in_stride, int out, void* out_data,
    size_t out_stride);

static void check(bool is_right, const char* what) {
    if (is_right) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static std::vector<char> read_bytes(size_t size) {
    std::vector<char> bytes(size);
    check(fread(bytes.data(), 1, size, stdin) == size, "the input ends too early");
    return bytes;
}

static void write_bytes(const std::vector<char>& bytes) {
    check(fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size(), "the output cannot be written");
}

// A weight of zeros and its memory.
struct EmptyWeight {
    std::vector<float> scales;
    std::vector<uint16_t> group_scales, group_minima;
    std::vector<int8_t> small_scales, small_minima;
    Weight weight;

    EmptyWeight(int outputs, int inputs, WeightKind kind) {
        const int panels = (outputs + PANEL - 1) / PANEL, columns = panels * PANEL, groups = (inputs + GROUP - 1) / GROUP;
        const int per_step = inputs_per_step(kind);
        const int steps = has_groups(kind) ? groups * code_bits(kind) : (inputs + per_step - 1) / per_step;
        auto* data = (uint8_t*)aligned_alloc(64, (size_t)panels * steps * STEP_BYTES);
        for (size_t i = 0; i < (size_t)panels * steps * STEP_BYTES; i++) data[i] = 0;
        scales.resize(columns), group_scales.resize(columns * groups), group_minima.resize(columns * groups);
        small_scales.resize(columns * groups * 2), small_minima.resize(columns * groups);
        weight = {outputs, inputs, panels, steps, kind, data, scales.data(), group_scales.data(), group_minima.data(),
                  small_scales.data(), small_minima.data()};
    }
    ~EmptyWeight() { free((void*)weight.data); }
};

// Fields: kind, rows, inputs, outputs, bytes of a row of the weight. Data: blocks of the weight, rows of bfloat16.
static void multiply_blocks(void* pool, const char* set, const int32_t* fields) {
    const int count = fields[1], inputs = fields[2], outputs = fields[3];
    const std::vector<char> from = read_bytes((size_t)outputs * fields[4]), rows = read_bytes((size_t)2 * count * inputs);
    const EmptyWeight empty(outputs, inputs, (WeightKind)fields[0]);
    check(!chairlift_pack_blocks(pool, &empty.weight, from.data(), fields[4], nullptr, outputs, STACKED, 0), "blocks");
    const int width = empty.weight.panels * PANEL;
    std::vector<char> out((size_t)2 * count * width);
    check(!chairlift_multiply(
              pool, set, &empty.weight, nullptr, false, SILU, rows.data(), false, inputs, count, out.data(), width),
          "multiply");
    write_bytes(out);
}

// Fields: kind, is_f32 of weights and rows, is_gated, rows, inputs, outputs. Data: the weight, the rows.
static void multiply(void* pool, const char* set, const int32_t* fields) {
    const auto kind = (WeightKind)fields[0];
    const bool is_f32 = fields[1], is_gated = fields[2];
    const int count = fields[3], inputs = fields[4], outputs = fields[5];
    const size_t weight_bytes = kind == FLOAT16 ? 2 : is_f32 ? 4 : 2, row_bytes = is_f32 ? 4 : 2;
    const std::vector<char> from = read_bytes(weight_bytes * outputs * inputs), rows = read_bytes(row_bytes * count * inputs);
    const int half = outputs / 2, packed = is_gated ? (half + 15) / 16 * 32 : outputs;
    const EmptyWeight empty(packed, inputs, kind);
    const Weight& weight = empty.weight;
    const int columns = weight.panels * PANEL;
    double errors[2] = {};
    if (is_gated)
        for (int part = 0; part < 2; part++)
            check(!chairlift_pack(
                      pool, &weight, from.data() + part * weight_bytes * half * inputs, weight_bytes == 4, half,
                      part ? UPS : GATES, 0, errors), "pack");
    else
        check(!chairlift_pack(pool, &weight, from.data(), weight_bytes == 4, outputs, STACKED, 0, errors), "pack");
    const int width = is_gated ? columns / 2 : columns;
    std::vector<char> out(row_bytes * count * width);
    check(!chairlift_multiply(
              pool, set, &weight, nullptr, is_gated, SILU, rows.data(), is_f32, inputs, count, out.data(), width),
          "multiply");
    write_bytes(out);
}

// Fields: is_f32, KV heads, heads, head_dim, keys, new tokens, window, soft cap (0: none), has_sinks. Data: keys, values,
// queries, float32 sinks [heads].
static void attend(void* pool, const char* set, const int32_t* fields) {
    const bool is_f32 = fields[0];
    const int kv_heads = fields[1], heads = fields[2], dim = fields[3], length = fields[4], tokens = fields[5];
    const int block_size = 16, blocks = (length + block_size - 1) / block_size;
    const size_t itemsize = is_f32 ? 4 : 2, block_elements = block_size * kv_heads * dim;
    const size_t cached = itemsize * blocks * block_elements;
    const std::vector<char> keys = read_bytes(itemsize * length * kv_heads * dim);
    const std::vector<char> values = read_bytes(keys.size());
    std::vector<char> queries = read_bytes(itemsize * tokens * heads * dim), out(queries.size());
    const std::vector<char> sinks = read_bytes(fields[8] ? sizeof(float) * heads : 0);
    std::vector<char> key_cache(cached, (char)0xff), value_cache(cached, (char)0xff);  // NaN
    std::vector<int32_t> table(blocks);
    std::vector<int64_t> slots(length);
    for (int i = 0; i < blocks; i++) table[i] = blocks - 1 - i;
    for (int i = 0; i < length; i++) slots[i] = table[i / block_size] * block_size + i % block_size;
    check(!chairlift_store_kv(
              pool, key_cache.data(), value_cache.data(), is_f32, block_size, kv_heads, dim, block_elements,
              keys.data(), kv_heads * dim, dim, values.data(), kv_heads * dim, dim, slots.data(), length), "store_kv");
    void* decoder = chairlift_decoder_new(pool, set);
    const int kind = is_f32 ? 0 : 1, in = chairlift_add_buffer(decoder, kind, heads * dim, 0);
    const int to = chairlift_add_buffer(decoder, kind, heads * dim, 0);
    chairlift_add_attention(
        decoder, in, to, 0, 0, heads, kv_heads, dim, block_size, block_elements, 0.2f, (float)fields[7], fields[6],
        fields[8] ? (const float*)sinks.data() : nullptr);
    const StepGroup group = {table.data(), blocks, nullptr};
    const StepCache cache = {key_cache.data(), value_cache.data()};
    const int32_t starts[2] = {0, tokens};
    const Step step = {tokens, 1, nullptr, nullptr, starts, &length, &group, &cache};
    const size_t stride = heads * dim;
    check(!chairlift_run_on(decoder, &step, in, queries.data(), stride, to, out.data(), stride), "attention");
    write_bytes(out);
}

// Fields: is_f32, KV heads, heads, head_dim, tokens. Data, all float32: rows of queries, keys and values; factors of the
// norm [heads + KV heads, head_dim]; cosines and sines [tokens, head_dim / 2]. Result: queries, cached keys and values.
static void rotate_and_cache(void* pool, const char* set, const int32_t* fields) {
    const bool is_f32 = fields[0];
    const int kv_heads = fields[1], heads = fields[2], dim = fields[3], tokens = fields[4], block_size = 16;
    const int blocks = (tokens + block_size - 1) / block_size, width = (heads + 2 * kv_heads) * dim;
    const size_t itemsize = is_f32 ? 4 : 2, cached = itemsize * blocks * block_size * kv_heads * dim;
    std::vector<char> rows = read_bytes(sizeof(float) * tokens * width), queries(itemsize * tokens * heads * dim);
    const std::vector<char> norm = read_bytes(sizeof(float) * (heads + kv_heads) * dim);
    const std::vector<char> cosines = read_bytes(sizeof(float) * tokens * dim / 2), sines = read_bytes(cosines.size());
    std::vector<char> key_cache(cached), value_cache(cached);
    std::vector<int64_t> places(tokens);
    for (int i = 0; i < tokens; i++) places[i] = i;
    void* decoder = chairlift_decoder_new(pool, set);
    const int in = chairlift_add_buffer(decoder, 0, width, 0), to = chairlift_add_buffer(decoder, !is_f32, heads * dim, 0);
    chairlift_add_rope_cache(
        decoder, in, to, 0, 0, heads, kv_heads, dim, block_size, (size_t)block_size * kv_heads * dim, kv_heads, kv_heads,
        (const float*)norm.data(), 1e-6f, 0, 0, (const float*)cosines.data(), (const float*)sines.data(), nullptr);
    const StepGroup group = {nullptr, 0, places.data()};
    const StepCache cache = {key_cache.data(), value_cache.data()};
    const Step step = {tokens, 1, nullptr, places.data(), nullptr, nullptr, &group, &cache};
    check(!chairlift_run_on(decoder, &step, in, rows.data(), width, to, queries.data(), heads * dim), "rope_cache");
    write_bytes(queries), write_bytes(key_cache), write_bytes(value_cache);
}

// Fields: kind of the table, its rows and width, tokens. Data: the table, int64 ids. Result: float32 rows, doubled.
static void embed(void* pool, const char* set, const int32_t* fields) {
    const int width = fields[2], tokens = fields[3];
    const std::vector<char> table = read_bytes((fields[0] == FLOAT32 ? 4 : 2) * fields[1] * width);
    const std::vector<char> ids = read_bytes(sizeof(int64_t) * tokens);
    std::vector<char> out(sizeof(float) * tokens * width);
    void* decoder = chairlift_decoder_new(pool, set);
    const int in = chairlift_add_buffer(decoder, 0, width, 0), to = chairlift_add_buffer(decoder, 0, width, 0);
    chairlift_add_embed(decoder, table.data(), fields[0], nullptr, width, 2.0f, to);
    const Step step = {tokens, 1, (const int64_t*)ids.data(), nullptr, nullptr, nullptr, nullptr, nullptr};
    check(!chairlift_run_on(decoder, &step, in, nullptr, width, to, out.data(), width), "embed");
    write_bytes(out);
}

// Fields: rows, vocabulary, count. Data: float32 logits. Result: the largest logits, their int64 ids, float64 logsumexp.
static void score(void* pool, const char* set, const int32_t* fields) {
    const int rows = fields[0], vocabulary = fields[1], count = fields[2];
    const std::vector<char> logits = read_bytes(sizeof(float) * rows * vocabulary);
    std::vector<char> values(sizeof(float) * rows * count), ids(sizeof(int64_t) * rows * count), sums(8 * rows);
    const auto* from = (const float*)logits.data();
    check(!chairlift_top_k(
              pool, set, from, rows, vocabulary, vocabulary, count, (float*)values.data(), (int64_t*)ids.data()),
          "top_k");
    check(!chairlift_logsumexp(pool, set, from, rows, vocabulary, vocabulary, (double*)sums.data()), "logsumexp");
    write_bytes(values), write_bytes(ids), write_bytes(sums);
}

// Fields: is_f32, rows, width. Data: the rows, float32 factors.
static void rms_norm(void* pool, const char* set, const int32_t* fields) {
    const size_t itemsize = fields[0] ? 4 : 2;
    const int count = fields[1], width = fields[2];
    const std::vector<char> rows = read_bytes(itemsize * count * width), factors = read_bytes(sizeof(float) * width);
    std::vector<char> out(rows.size());
    check(!chairlift_rms_norm(
              pool, set, rows.data(), fields[0], width, count, width, (const float*)factors.data(), 1e-6f, out.data(),
              width), "rms_norm");
    write_bytes(out);
}

// Fields: kind of the recurrence, key heads, heads, key_dim, value_dim, tokens, tokens of the first chunk. Data, all
// float32: rows of the projection, convolution [4, channels], decay rates, dt_bias and skips [heads], norm [heads *
// value_dim]. Result: the outputs, the states of the convolution and of the recurrence; entry 1 is saved after one token.
static void run_states(void* pool, const char* set, const int32_t* fields) {
    const auto kind = (RecurrenceKind)fields[0];
    const int key_heads = fields[1], heads = fields[2], key_dim = fields[3], value_dim = fields[4], tokens = fields[5];
    const int keys = key_heads * key_dim, values = heads * value_dim, channels = 2 * keys + values, width = 4;
    const bool is_delta = kind == DELTA_RULE;
    const int projected = channels + values + heads * (is_delta ? 2 : 1);
    std::vector<char> rows = read_bytes(sizeof(float) * tokens * projected), out(sizeof(float) * tokens * values);
    const std::vector<char> weights = read_bytes(sizeof(float) * width * channels);
    const std::vector<char> rates = read_bytes(sizeof(float) * heads), dt_bias = read_bytes(rates.size());
    const std::vector<char> skips = read_bytes(rates.size()), norm = read_bytes(sizeof(float) * values);
    std::vector<char> convolution(sizeof(float) * 2 * (width - 1) * channels, (char)0xff);  // NaN
    std::vector<char> recurrent(sizeof(float) * 2 * heads * key_dim * value_dim, (char)0xff);
    void* decoder = chairlift_decoder_new(pool, set);
    const int in = chairlift_add_buffer(decoder, 0, projected, 0), mixed = chairlift_add_buffer(decoder, 0, channels, 0);
    const int recurred = chairlift_add_buffer(decoder, 0, values, 0), to = chairlift_add_buffer(decoder, 0, values, 0);
    const int gates = is_delta ? channels : 0, first = is_delta ? 0 : values, numbers = channels + values;
    chairlift_add_convolution(
        decoder, in, mixed, 0, first, channels, width, (const float*)weights.data(), nullptr, false);
    const RecurrenceShape shape = {
        kind, key_heads, heads, key_dim, value_dim, is_delta ? 0 : values + keys, is_delta ? keys : values,
        is_delta ? 2 * keys : 0, is_delta ? numbers + heads : numbers, numbers, (const float*)rates.data(),
        (const float*)dt_bias.data(), (const float*)skips.data(), 0.0f, 1.0f};
    chairlift_add_recurrence(decoder, mixed, in, recurred, 0, &shape);
    chairlift_add_gated_norm(
        decoder, recurred, in, gates, values, is_delta ? value_dim : values, (const float*)norm.data(), 1e-6f,
        !is_delta, false, to);
    check(!chairlift_reserve(decoder, tokens), "reserve");
    const StepState state = {(float*)convolution.data(), (float*)recurrent.data()};
    const StateSave save = {0, 1, 1};
    const int32_t slot = 0;
    for (int begin = 0, count = fields[6]; begin < tokens; begin += count, count = tokens - begin) {
        const int32_t starts[2] = {0, count}, length = begin + count;
        Step step = {count, 1, nullptr, nullptr, starts, &length, nullptr, nullptr, &slot, &save, begin == 0, &state};
        check(!chairlift_run_on(
                  decoder, &step, in, rows.data() + sizeof(float) * begin * projected, projected, to,
                  out.data() + sizeof(float) * begin * values, values), "states");
    }
    write_bytes(out), write_bytes(convolution), write_bytes(recurrent);
}

int main(int, char** arguments) {
    const char* set = arguments[1];
    check(chairlift_has(set), "the instruction set is not available");
    const int32_t anywhere[2] = {-1, -1};
    void* pool = chairlift_pool_new(anywhere, atoi(arguments[2]));
    void (*const operations[])(void*, const char*, const int32_t*) = {
        multiply, attend, rms_norm, rotate_and_cache, embed, score, multiply_blocks, run_states};
    int32_t fields[10];
    while (fread(fields, sizeof fields, 1, stdin) == 1) operations[fields[0]](pool, set, fields + 1);
    fflush(stdout);
    _exit(0);  // the threads of the pool go with the process
}
