// pack(): converts weights from a checkpoint's layout to panels (kernels.h).
#pragma once

#include "kernels.h"
#include "thread_pool.h"

namespace chairlift {

// Output rows of a part: STACKED: from `first` on; GATES, UPS: the gates or ups of a gated pair.
enum Placement : int32_t { STACKED = 0, GATES = 1, UPS = 2 };

struct QuantizationError {
    double squared_error, squared_norm;  // sums of squared errors and of squares
};

// Packs rows [count, inputs] into a weight whose data is still zero. FLOAT32 takes float32, FLOAT16
// float16, BFLOAT16 bfloat16, the quantized kinds bfloat16 or float32. Returns the quantization error of these.
QuantizationError pack(
    ThreadPool& pool, const Weight& weight, const void* rows, bool is_f32, int count, Placement placement, int first);

// Packs rows of blocks of ggml, [count][row_bytes], into a weight of the same type whose data is still zero; inputs are
// whole blocks. order: the row of each output, or null for the same order. Returns how many blocks have a scale that is
// infinite or NaN.
int64_t pack_blocks(
    ThreadPool& pool, const Weight& weight, const uint8_t* rows, size_t row_bytes, const int32_t* order, int count,
    Placement placement, int first);

}  // namespace chairlift
