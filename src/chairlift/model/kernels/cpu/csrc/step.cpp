#include "step.h"

#include <algorithm>

namespace chairlift {

PlanFault PlannedStep::fill(Plan& plan) {
    ids_.resize(plan.tokens), positions_.resize(plan.tokens);
    cu_q_.resize(plan.rows + 1), seq_lens_.resize(plan.rows), samples_.resize(plan.samples), groups_.resize(plan.groups);
    if (const PlanFault fault = spread(plan)) return fault;
    width_ = (longest_ + plan.block_size - 1) / plan.block_size;
    tables_.resize((size_t)plan.groups * plan.rows * width_), places_.resize((size_t)plan.groups * plan.tokens);
    for (int group = 0; group < plan.groups; group++)
        if (const PlanFault fault = place(plan, group)) return fault;
    step = {plan.tokens,  plan.rows,        ids_.data(),    positions_.data(),
            cu_q_.data(), seq_lens_.data(), groups_.data(), plan.caches};
    return NO_FAULT;
}

// Which tokens there are, and where they stand.
PlanFault PlannedStep::spread(Plan& plan) {
    const int32_t *slots = plan.numbers, *counts = slots + plan.rows, *starts = counts + plan.rows, *ids = starts + plan.rows;
    longest_ = 0, cu_q_[0] = 0;
    for (int row = 0, token = 0; row < plan.rows; row++) {
        const int32_t slot = slots[row], start = starts[row], count = counts[row];
        if (slot < 0 || slot >= plan.num_slots || count < 1 || count > plan.tokens - token) return BROKEN_PLAN;
        if (start < 0 || start > plan.width * (int64_t)plan.block_size - count) return BROKEN_PLAN;
        const int32_t end = token + count;
        for (int position = start; token < end; token++, position++) {
            const int32_t id = ids[token] == LAST_SAMPLED ? plan.last_sampled[slot] : ids[token];
            if (id < 0 || id >= plan.vocab_size) return plan.refused = id, NO_SUCH_TOKEN;
            ids_[token] = id, positions_[token] = position;
        }
        cu_q_[row + 1] = end, seq_lens_[row] = start + count;
        longest_ = std::max(longest_, seq_lens_[row]);
    }
    if (cu_q_[plan.rows] != plan.tokens) return BROKEN_PLAN;
    for (int sample = 0; sample < plan.samples; sample++) {
        const int32_t row = ids[plan.tokens + sample];
        if (row < 0 || row >= plan.rows) return BROKEN_PLAN;
        samples_[sample] = cu_q_[row + 1] - 1;
    }
    return NO_FAULT;
}

// Where they lie in the cache of one group.
PlanFault PlannedStep::place(const Plan& plan, int group) {
    int32_t* table = tables_.data() + (size_t)group * plan.rows * width_;
    int64_t* places = places_.data() + (size_t)group * plan.tokens;
    groups_[group] = {table, width_, places};
    for (int row = 0; row < plan.rows; row++, table += width_) {
        const int32_t* blocks = plan.blocks + ((size_t)group * plan.num_slots + plan.numbers[row]) * plan.width;
        for (int token = cu_q_[row]; token < cu_q_[row + 1]; token++) {
            const int64_t block = blocks[positions_[token] / plan.block_size];
            if (block < 0) return BROKEN_PLAN;
            places[token] = plan.writes ? block * plan.block_size + positions_[token] % plan.block_size : -1;
        }
        // Entries that were never named lie behind a window; 0 keeps whoever reads whole tables in bounds.
        for (int i = 0; i < width_; i++) table[i] = std::max(blocks[i], 0);
    }
    return NO_FAULT;
}

}  // namespace chairlift
