#include "expert_plan.h"

#include <algorithm>
#include <cmath>

namespace chairlift {

namespace {

// What is not a number comes first, as in a sort of torch.
float sort_key(float score) { return score == score ? score : INFINITY; }

// Writes the indices of the `count` largest of scores [size], the best first and the lower index of equal ones.
void select_best(const float* scores, int size, int count, int32_t* best) {
    int found = 0;
    for (int index = 0; index < size; index++) {
        const float key = sort_key(scores[index]);
        if (found == count && !(key > sort_key(scores[best[count - 1]]))) continue;
        int at = found < count ? found++ : count - 1;
        for (; at > 0 && key > sort_key(scores[best[at - 1]]); at--) best[at] = best[at - 1];
        best[at] = index;
    }
}

// Returns e**(x - largest) for a sum that cannot overflow.
void softmax(const float* logits, int size, float* out) {
    float largest = logits[0];
    for (int i = 1; i < size; i++) largest = logits[i] > largest ? logits[i] : largest;
    double total = 0;
    for (int i = 0; i < size; i++) total += out[i] = expf(logits[i] - largest);
    for (int i = 0; i < size; i++) out[i] = (float)(out[i] / total);
}

// Sets the keys of the groups that are not chosen to -INFINITY. Groups are chosen by the sum of their two best keys.
void keep_best_groups(const RouterSettings& settings, float* keys, float* sums) {
    const int size = settings.num_experts / settings.num_groups;
    for (int group = 0; group < settings.num_groups; group++) {
        int32_t two[2];
        select_best(keys + group * size, size, 2, two);
        sums[group] = sort_key(keys[group * size + two[0]] + keys[group * size + two[1]]);
    }
    for (int group = 0; group < settings.num_groups; group++) {
        int num_better = 0;
        for (int other = 0; other < settings.num_groups; other++)
            num_better += sums[other] > sums[group] || (sums[other] == sums[group] && other < group);
        if (num_better >= settings.groups_per_row)
            std::fill(keys + group * size, keys + (group + 1) * size, -INFINITY);
    }
}

}  // namespace

void choose_experts(
    const RouterSettings& settings, const float* logits, float* scratch, int32_t* experts, float* factors) {
    const int size = settings.num_experts, count = settings.experts_per_row;
    float *scores = scratch, *keys = scratch + size, *sums = scratch + 2 * size;
    if (settings.scoring == TOP_SOFTMAX) {
        select_best(logits, size, count, experts);
        for (int rank = 0; rank < count; rank++) keys[rank] = logits[experts[rank]];
        softmax(keys, count, factors);
        return;
    }
    if (settings.scoring == SOFTMAX)
        softmax(logits, size, scores);
    else
        for (int i = 0; i < size; i++) scores[i] = 1.0f / (1.0f + expf(-logits[i]));
    for (int i = 0; i < size; i++)
        keys[i] = settings.correction_bias ? scores[i] + settings.correction_bias[i] : scores[i];
    if (settings.num_groups > 1) keep_best_groups(settings, keys, sums);
    select_best(keys, size, count, experts);
    float total = 0;
    for (int rank = 0; rank < count; rank++) total += factors[rank] = scores[experts[rank]];
    const float divisor = settings.renormalizes ? total + settings.sum_offset : 1.0f;
    for (int rank = 0; rank < count; rank++) {
        factors[rank] = factors[rank] / divisor * settings.scaling_factor;
        if (settings.expert_scales) factors[rank] *= settings.expert_scales[experts[rank]];
    }
}

void ExpertPlan::reserve(int rows, int num_threads) {
    const size_t pairs = (size_t)rows * settings.experts_per_row;
    for (std::vector<int32_t>* array : {&experts, &places, &row_of_place})
        if (array->size() < pairs) array->resize(pairs);
    if (factors.size() < pairs) factors.resize(pairs);
    gathered.reserve(pairs);
    segments.reserve(settings.num_experts), next_place_.resize(settings.num_experts);
    scratch.resize((size_t)num_threads * scratch_size());
    num_chosen_rows.store(0, std::memory_order_relaxed);
    segments.clear(), gathered.clear();
}

void ExpertPlan::sort(int rows) {
    const int pairs = rows * settings.experts_per_row;
    std::fill(next_place_.begin(), next_place_.end(), 0);
    for (int pair = 0; pair < pairs; pair++) next_place_[experts[pair]]++;
    int first = 0;
    for (int expert = 0; expert < settings.num_experts; expert++) {
        const int count = next_place_[expert];
        if (count) segments.push_back({expert, first, count});
        next_place_[expert] = first, first += count;
    }
    for (int pair = 0; pair < pairs; pair++) {
        places[pair] = next_place_[experts[pair]]++;
        row_of_place[places[pair]] = pair / settings.experts_per_row;
    }
    for (const Segment& segment : segments)
        for (int place = segment.first; segment.count > 1 && place < segment.first + segment.count; place++)
            gathered.push_back(place);
}

}  // namespace chairlift
