// Samples one token per row of logits: temperature, truncation, inverse CDF (as sampling/truncated_sampling.py does).
#pragma once

#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace chairlift {

struct TruncationParams {
    double temperature;  // above 0
    double top_p;        // 1: no truncation
    double min_p;        // 0: no truncation
    double uniform;      // random number in [0, 1)
    int64_t top_k;       // 0: no truncation
};

// Logits float32 [rows, vocabulary]. No logit is NaN, and the largest of each row is finite.
struct Logits {
    const float* data;
    int32_t rows, vocabulary;
    size_t stride;  // elements between rows
};

// Writes tokens [rows]. params: [rows].
void sample(
    ThreadPool& pool, const Kernels& kernels, const Logits& logits, const TruncationParams* params, int64_t* tokens);

// Writes the `count` largest logits of each row and their ids, [rows, count] each, in descending order; equal logits by
// ascending id. count is at most the vocabulary.
void top_k(ThreadPool& pool, const Kernels& kernels, const Logits& logits, int count, float* values, int64_t* ids);

// Writes log(sum of e**(logit - max logit of the row)): sums [rows].
void logsumexp(ThreadPool& pool, const Kernels& kernels, const Logits& logits, double* sums);

}  // namespace chairlift
