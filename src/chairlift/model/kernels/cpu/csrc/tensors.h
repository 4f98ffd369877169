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

// Writes bfloat16 rows [count][panels * 64]: rows [count, weight.inputs] times the weight, plus the bias, float32
// [panels * 64] or null. Rows are quantized first if the weight is. Throws std::bad_alloc.
void multiply(
    ThreadPool& pool, const Kernels& kernels, const Weight& weight, const float* bias, const Rows& rows, uint16_t* out,
    size_t out_stride);

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
