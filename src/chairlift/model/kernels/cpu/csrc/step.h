// Step: the input of a decoder. Plan: the scheduler's step plan. PlannedStep: makes a step from a plan.
#pragma once

#include <vector>

#include "kernels.h"

namespace chairlift {

// Where a layer group of a step has its tokens in the KV cache.
struct StepGroup {
    const int32_t* block_table;   // [num_seqs, max_blocks]
    int32_t max_blocks;
    const int64_t* slot_mapping;  // [num_tokens]
};

struct StepCache {
    void* keys;
    void* values;
};

// The states of one layer that has them, [entries, ...].
struct StepState {
    float* convolution;
    float* recurrent;  // null for a layer with a convolution only
};

// The input of one step. The caller owns all arrays and must not change them while the step runs.
struct Step {
    int32_t num_tokens, num_seqs;
    const int64_t* ids;           // [num_tokens]
    const int64_t* positions;     // [num_tokens]
    const int32_t* cu_seqlens_q;  // [num_seqs + 1]
    const int32_t* seq_lens;      // [num_seqs]
    const StepGroup* groups;
    const StepCache* caches;      // by index of the layer in its group
    const int32_t* slots;         // [num_seqs] entry of each sequence's states; null without layers that have states
    const StateSave* saves;       // [num_saves]
    int32_t num_saves;
    const StepState* states;      // by index of the layer among those with states
    StateRows state_rows() const { return {cu_seqlens_q, seq_lens, slots, saves, num_saves}; }
};

constexpr int32_t LAST_SAMPLED = -1;

// The rows of a step plan (engine/step_plan.py), and the block tables by slot (model/batch/input_batch.py).
struct Plan {
    int32_t num_rows, num_tokens, num_samples;
    const int32_t* packed_inputs;  // [num_rows] slots, [num_rows] numbers of new tokens, [num_rows] start positions,
                                   // [num_tokens] ids or LAST_SAMPLED, [num_samples] tokens to sample after
    const int32_t* last_sampled;   // [num_slots]
    const int32_t* block_tables;   // [num_groups][num_slots][max_blocks], -1: no block
    int32_t num_groups, num_slots, max_blocks, block_size, vocab_size;
    int32_t writes_kv;             // 0: keys and values are not written
    const StepCache* caches;
    int32_t invalid_token;         // out: the id that the vocabulary lacks, on INVALID_TOKEN
    const StateSave* saves;        // [num_saves]
    int32_t num_saves;
    int32_t num_entries;           // of the states: slots and checkpoints
    const StepState* states;       // by index of the layer among those with states
    // [num_samples] indices of the tokens to sample after.
    const int32_t* sample_tokens() const { return packed_inputs + 3 * (size_t)num_rows + num_tokens; }
};

enum PlanError : int { NO_ERROR = 0, OUT_OF_MEMORY = -1, INVALID_TOKEN = -2, INVALID_PLAN = -3 };

// Makes a step from a plan. Its arrays are reused for the next plan.
class PlannedStep {
public:
    // Fills `step`. Throws std::bad_alloc.
    PlanError fill(Plan& plan);

    Step step;

private:
    PlanError fill_tokens(Plan& plan);
    PlanError fill_slots(const Plan& plan, int group);
    PlanError check_saves(const Plan& plan) const;

    int32_t max_seq_len_ = 0, table_width_ = 0;
    std::vector<int64_t> ids_, positions_, slot_mapping_;
    std::vector<int32_t> cu_seqlens_q_, seq_lens_, block_tables_;
    std::vector<StepGroup> groups_;
};

}  // namespace chairlift
