// The kernels of one instruction set: this file is compiled once for each (compile.py says with which flags).
#include "attention.h"
#include "kernels.h"
#include "linear.h"
#include "rows.h"
#include "weighing.h"

#define CHAIRLIFT_JOINED(left, right) left##right
#define CHAIRLIFT_NAMED(left, right) CHAIRLIFT_JOINED(left, right)
#define CHAIRLIFT_TEXT(name) #name
#define CHAIRLIFT_QUOTED(name) CHAIRLIFT_TEXT(name)

namespace chairlift {

const Kernels* CHAIRLIFT_NAMED(kernels_, CHAIRLIFT_SET)() {
    using namespace CHAIRLIFT_SET;
    static const Kernels kernels = {
        CHAIRLIFT_QUOTED(CHAIRLIFT_SET), embed, norm, quantize, linear, heads, attend, join, peaks,
        weigh,
    };
    return &kernels;
}

}  // namespace chairlift
