// Single operations on a caller's tensors, for models whose other operations run in torch.
#pragma once

#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace chairlift {

// Rows of bfloat16 or float32, `stride` elements apart.
struct Rows {
    const void* data;
    bool is_f32;
    size_t stride;
    int32_t count;
    size_t itemsize() const { return is_f32 ? sizeof(float) : sizeof(Bfloat16); }
};

// The input rows of a linear operation: a caller's rows, padded to whole steps of the weight, and quantized if it is.
class LinearInput {
public:
    // Refers to rows [count, weight.inputs], or copies them if they must be padded. Throws std::bad_alloc.
    void set(const Weight& weight, const Rows& from);
    // Copies the rows of these indices; null: all. Throws std::bad_alloc.
    void copy(const Weight& weight, const Rows& from, const int32_t* row_indices);
    // The quantization to run before `rows` are read; null: none.
    const QuantizeCall* quantize_call() const { return quantized_.empty() ? nullptr : &quantize_; }

    Activations rows;

private:
    void set_quantized(const Weight& weight, const Rows& from);

    std::vector<uint8_t> padded_;
    std::vector<int8_t> quantized_;
    std::vector<float> scales_;
    std::vector<int32_t> sums_;
    QuantizeCall quantize_;
};

// Multiplies rows [count, weight.inputs] by the weight and adds the bias, float32 [panels * 64] or null. Writes rows of
// their dtype: [count][panels * 64], or half as many outputs if they are gated by an activation. Rows are quantized
// first if the weight is. Throws std::bad_alloc.
void multiply(
    ThreadPool& pool, const Kernels& kernels, const Weight& weight, const float* bias, bool is_gated,
    Activation activation, const Rows& rows, void* out, size_t out_stride);

// Writes the RMS norm of rows [count, width], in their dtype, times `factors`, float32 [width]. Throws std::bad_alloc.
void rms_norm(
    ThreadPool& pool, const Kernels& kernels, const Rows& rows, int width, const float* factors, float eps, void* out,
    size_t out_stride);

// Keys or values of new tokens [count][kv heads][head_dim] in the cache's dtype, with the elements between tokens and
// heads.
struct NewTokens {
    const void* data;
    int64_t token_stride, head_stride;
};

// Stores keys and values of tokens at their slots [count] in the cache; a slot below 0 is skipped.
void store_kv(
    ThreadPool& pool, const KVCache& cache, const NewTokens& keys, const NewTokens& values, const int64_t* slot_mapping,
    int count);

}  // namespace chairlift
