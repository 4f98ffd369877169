#include "step.h"

#include <algorithm>

namespace chairlift {

PlanError PlannedStep::fill(Plan& plan) {
    ids_.resize(plan.num_tokens), positions_.resize(plan.num_tokens);
    cu_seqlens_q_.resize(plan.num_rows + 1), seq_lens_.resize(plan.num_rows);
    groups_.resize(plan.num_groups);
    if (const PlanError error = fill_tokens(plan)) return error;
    if (const PlanError error = check_saves(plan)) return error;
    table_width_ = (max_seq_len_ + plan.block_size - 1) / plan.block_size;
    block_tables_.resize((size_t)plan.num_groups * plan.num_rows * table_width_);
    slot_mapping_.resize((size_t)plan.num_groups * plan.num_tokens);
    for (int group = 0; group < plan.num_groups; group++)
        if (const PlanError error = fill_slots(plan, group)) return error;
    step = {plan.num_tokens,      plan.num_rows,    ids_.data(),    positions_.data(),
            cu_seqlens_q_.data(), seq_lens_.data(), groups_.data(), plan.caches,
            plan.packed_inputs,   plan.saves,       plan.num_saves, plan.states};
    return NO_ERROR;
}

// Fills token ids, positions and sequence lengths.
PlanError PlannedStep::fill_tokens(Plan& plan) {
    const int32_t *slots = plan.packed_inputs, *counts = slots + plan.num_rows;
    const int32_t *starts = counts + plan.num_rows, *ids = starts + plan.num_rows;
    max_seq_len_ = 0, cu_seqlens_q_[0] = 0;
    for (int row = 0, token = 0; row < plan.num_rows; row++) {
        const int32_t slot = slots[row], start = starts[row], count = counts[row];
        // Indices are checked here once: no kernel checks them again.
        if (slot < 0 || slot >= plan.num_slots || count < 1 || count > plan.num_tokens - token) return INVALID_PLAN;
        if (start < 0 || start > plan.max_blocks * (int64_t)plan.block_size - count) return INVALID_PLAN;
        const int32_t end = token + count;
        for (int position = start; token < end; token++, position++) {
            const int32_t id = ids[token] == LAST_SAMPLED ? plan.last_sampled[slot] : ids[token];
            if (id < 0 || id >= plan.vocab_size) return plan.invalid_token = id, INVALID_TOKEN;
            ids_[token] = id, positions_[token] = position;
        }
        cu_seqlens_q_[row + 1] = end, seq_lens_[row] = start + count;
        max_seq_len_ = std::max(max_seq_len_, seq_lens_[row]);
    }
    if (cu_seqlens_q_[plan.num_rows] != plan.num_tokens) return INVALID_PLAN;
    const int32_t* sample_tokens = plan.sample_tokens();
    for (int sample = 0; sample < plan.num_samples; sample++)
        if (sample_tokens[sample] < 0 || sample_tokens[sample] >= plan.num_tokens) return INVALID_PLAN;
    return NO_ERROR;
}

PlanError PlannedStep::check_saves(const Plan& plan) const {
    for (int i = 0; i < plan.num_saves; i++) {
        const StateSave& save = plan.saves[i];
        if (save.row < 0 || save.row >= plan.num_rows || save.entry < 0 || save.entry >= plan.num_entries)
            return INVALID_PLAN;
        if (save.num_tokens < 1 || save.num_tokens > cu_seqlens_q_[save.row + 1] - cu_seqlens_q_[save.row])
            return INVALID_PLAN;
    }
    return NO_ERROR;
}

// Fills block tables and slot mapping of one layer group.
PlanError PlannedStep::fill_slots(const Plan& plan, int group) {
    int32_t* block_table = block_tables_.data() + (size_t)group * plan.num_rows * table_width_;
    int64_t* slot_mapping = slot_mapping_.data() + (size_t)group * plan.num_tokens;
    groups_[group] = {block_table, table_width_, slot_mapping};
    for (int row = 0; row < plan.num_rows; row++, block_table += table_width_) {
        const int32_t* blocks =
            plan.block_tables + ((size_t)group * plan.num_slots + plan.packed_inputs[row]) * plan.max_blocks;
        for (int token = cu_seqlens_q_[row]; token < cu_seqlens_q_[row + 1]; token++) {
            const int64_t block = blocks[positions_[token] / plan.block_size];
            if (block < 0) return INVALID_PLAN;
            slot_mapping[token] = plan.writes_kv ? block * plan.block_size + positions_[token] % plan.block_size : -1;
        }
        // Entries that were never set lie before a sliding window. 0 keeps code that reads whole tables within bounds.
        for (int i = 0; i < table_width_; i++) block_table[i] = std::max(blocks[i], 0);
    }
    return NO_ERROR;
}

}  // namespace chairlift
