// Single operations on a caller's tensors, for models whose other operations run in torch.
#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace chairlift {

// Rows of bfloat16, `stride` elements apart.
struct Rows {
    const uint16_t* data;
    size_t stride;
    int32_t count;
};

// Multiplies rows [count, weight.inputs] by the weight and adds the bias, float32 [panels * 64] or null. Writes bfloat16
// rows: [count][panels * 64], or half as many outputs with mode GATED, else mode is ROUND. Rows are quantized first if
// the weight is. Throws std::bad_alloc.
void multiply(
    ThreadPool& pool, const Kernels& kernels, const Weight& weight, const float* bias, LinearMode mode,
    Activation activation, const Rows& rows, uint16_t* out, size_t out_stride);

// Writes the RMS norm of rows, bfloat16 [count, width], times `factors`, float32 [width]. Throws std::bad_alloc.
void rms_norm(
    ThreadPool& pool, const Kernels& kernels, const Rows& rows, int width, const float* factors, float eps,
    uint16_t* out, size_t out_stride);

// Keys or values of new tokens [count][kv heads][head_dim] in bfloat16, with the elements between tokens and heads.
struct NewTokens {
    const uint16_t* data;
    int64_t token_stride, head_stride;
};

// Stores keys and values of tokens at their slots [count] in the cache; a slot below 0 is skipped.
void store_kv(
    ThreadPool& pool, const KVCache& cache, const NewTokens& keys, const NewTokens& values, const int64_t* slot_mapping,
    int count);

}  // namespace chairlift
