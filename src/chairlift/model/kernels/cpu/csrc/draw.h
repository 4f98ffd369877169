// One token for each row of logits: temperature, truncation, and the inverse of the running sum (choice.py says how).
#pragma once

#include <vector>

#include "kernels.h"
#include "pool.h"

namespace chairlift {

struct Rule {
    double temperature;  // above 0
    double top_p;        // 1 keeps all
    double min_p;        // 0 keeps all
    double number;       // the draw, in [0, 1)
    int64_t top_k;       // 0 keeps all
};

// Rows of float32 [rows, vocabulary]: no NaN, the largest of each row finite.
struct Logits {
    const float* data;
    int32_t rows, vocabulary;
    size_t stride;  // elements between rows
};

// tokens [rows].
void draw(Pool& pool, const Kernels& kernels, const Logits& logits, const Rule* rules, int64_t* tokens);

// The `count` largest of each row, at most the vocabulary, of equals the lowest ids first: [rows, count] each.
void likeliest(Pool& pool, const Kernels& kernels, const Logits& logits, int count, float* values, int64_t* ids);

// The logarithm of the sum of e**(logit - the largest of its row): [rows].
void log_sums(Pool& pool, const Kernels& kernels, const Logits& logits, double* sums);

}  // namespace chairlift
