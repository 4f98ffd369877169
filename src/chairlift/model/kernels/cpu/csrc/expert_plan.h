// ExpertPlan: which experts the rows of a step are sent to, and in which order their products are computed.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace chairlift {

enum Scoring : int32_t { SOFTMAX = 0, TOP_SOFTMAX = 1, SIGMOID = 2 };

// How a router chooses the experts of a row from its logits (ExpertRouterConfig in config/experts_config.py).
struct RouterSettings {
    int32_t num_experts, experts_per_row;
    Scoring scoring;
    int32_t renormalizes;
    float sum_offset, scaling_factor;
    int32_t num_groups, groups_per_row;
    const float* correction_bias;  // [num_experts] added for the choice only, or null
    const float* expert_scales;    // [num_experts] factors, or null
};

// Chooses the experts of a row, the best first and the lower index of equal ones, and the factors of their outputs.
// logits [num_experts]; scratch [3 * num_experts]; experts, factors [experts_per_row]. A logit that is not a number
// makes a factor that is none.
void choose_experts(
    const RouterSettings& settings, const float* logits, float* scratch, int32_t* experts, float* factors);

// A pair is a row and one of its experts. Pairs are sorted by expert; a pair's index in this order is its place.
//
//     pair    row 0: 5 2 | row 1: 2 7 | row 2: 5 2        experts by rank
//     place          3 0 |        1 5 |        4 2
//     segments  expert 2: places 0-2, expert 5: places 3-4, expert 7: place 5
struct ExpertPlan {
    // The pairs of one expert, which are adjacent.
    struct Segment {
        int32_t expert, first, count;
    };

    explicit ExpertPlan(const RouterSettings& settings) : settings(settings) {}

    // Allocates the arrays for rows that are chosen in up to `num_threads` threads. Throws std::bad_alloc.
    void reserve(int rows, int num_threads);
    // Sorts the pairs of all rows, whose experts are chosen.
    void sort(int rows);
    size_t scratch_size() const { return 3 * (size_t)settings.num_experts; }

    const RouterSettings settings;
    std::vector<int32_t> experts, places;   // by pair: row * experts_per_row + rank
    std::vector<float> factors;             // by pair
    std::vector<int32_t> row_of_place;
    std::vector<Segment> segments;          // of the experts that have rows, in order
    std::vector<int32_t> gathered;          // places of experts with several rows
    std::vector<float> scratch;             // [threads][scratch_size()]
    std::atomic<int> num_chosen_rows{0};

private:
    std::vector<int32_t> next_place_;  // [num_experts]
};

}  // namespace chairlift
