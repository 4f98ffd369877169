// The kernels of one instruction set. compile.py compiles this file once per set, with that set's flags.
#include "attention.h"
#include "kernels.h"
#include "linear.h"
#include "peak.h"
#include "rowwise.h"
#include "softmax.h"
#include "state.h"

#define CHAIRLIFT_CONCAT(left, right) left##right
#define CHAIRLIFT_EXPAND_CONCAT(left, right) CHAIRLIFT_CONCAT(left, right)
#define CHAIRLIFT_STRINGIZE(name) #name
#define CHAIRLIFT_EXPAND_STRINGIZE(name) CHAIRLIFT_STRINGIZE(name)

namespace chairlift {

const Kernels* CHAIRLIFT_EXPAND_CONCAT(kernels_, CHAIRLIFT_SET)() {
    using namespace CHAIRLIFT_SET;
    static const Kernels kernels = {
        CHAIRLIFT_EXPAND_STRINGIZE(CHAIRLIFT_SET), embed, norm, quantize, linear, rope_cache, attention, combine,
        sum_experts, convolution, recurrence, multiply_by_gate, multiply_activated, gated_norm, block_max, exp_weights,
        peak_rate,
    };
    return &kernels;
}

}  // namespace chairlift
