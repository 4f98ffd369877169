// Weights as a checkpoint has them -> panels (kernels.h).
#pragma once

#include "kernels.h"
#include "pool.h"

namespace chairlift {

// Where rows of a part go: one below the other from `first` on, or as gates or ups of a gated pair.
enum Placement : int32_t { BELOW = 0, GATES = 1, UPS = 2 };

struct Error {
    double squares, of;  // sum of squared errors, sum of squares
};

// Packs rows [count, inputs] of bfloat16 into a weight whose data is zero (int8: 128) so far. For the kinds of int8,
// returns what rounding did.
Error pack(Pool& pool, const Weight& weight, const uint16_t* rows, int count, Placement placement, int first);

}  // namespace chairlift
