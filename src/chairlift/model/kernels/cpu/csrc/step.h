// What a decoder runs: a step; and the scheduler's plan, which is turned into one.
#pragma once

#include <vector>

#include "kernels.h"

namespace chairlift {

// One layer group of a step: where its tokens lie.
struct StepGroup {
    const int32_t* block_table;  // [sequences, max_blocks]
    int32_t max_blocks;
    const int64_t* slots;        // [tokens]
};

struct StepCache {
    uint16_t* keys;
    uint16_t* values;
};

// What a step brings; all of it is the caller's and stays as it is while the step runs.
struct Step {
    int32_t tokens, sequences;
    const int64_t* ids;        // [tokens]
    const int64_t* positions;  // [tokens]
    const int32_t* cu_q;       // [sequences + 1]
    const int32_t* seq_lens;   // [sequences]
    const StepGroup* groups;
    const StepCache* caches;   // by index of the layer in its group
};

constexpr int32_t LAST_SAMPLED = -1;

// Rows of a plan (engine/step_plan.py), and the tables by slot that say where their sequences lie (model/runner/input_batch.py).
struct Plan {
    int32_t rows, tokens, samples;
    const int32_t* numbers;       // [rows] slots, [rows] tokens of each, [rows] positions of their first, [tokens] ids,
                                  // [samples] rows that are drawn from; an id may be LAST_SAMPLED
    const int32_t* last_sampled;  // [num_slots]
    const int32_t* blocks;        // [groups][num_slots][width], -1 where none was named
    int32_t groups, num_slots, width, block_size, vocab_size;
    int32_t writes;               // 0: to the cache every token is padding
    const StepCache* caches;
    int32_t refused;              // out: an id that the vocabulary does not have
};

enum PlanFault : int { NO_FAULT = 0, NO_MEMORY = -1, NO_SUCH_TOKEN = -2, BROKEN_PLAN = -3 };

// A plan as a step; its arrays are kept for the next one.
class PlannedStep {
public:
    // Throws std::bad_alloc.
    PlanFault fill(Plan& plan);

    // [samples] the last token of each row that is drawn from.
    const int32_t* samples() const { return samples_.data(); }

    Step step;

private:
    PlanFault spread(Plan& plan);
    PlanFault place(const Plan& plan, int group);

    int32_t longest_ = 0, width_ = 0;
    std::vector<int64_t> ids_, positions_, places_;
    std::vector<int32_t> cu_q_, seq_lens_, samples_, tables_;
    std::vector<StepGroup> groups_;
};

}  // namespace chairlift
