// The gate: which experts a token takes, and with what weight (DeepSeek-V2, arXiv:2405.04434, 2.2; -V3, arXiv:2412.19437,
// 2.1.2). Scores are fp32 in every model.

#pragma once

namespace arc::ARC_LEVEL {

constexpr int GATE_EXPERTS = 16; // of one item
constexpr int GATE_ROWS = 32;

// x . w[e] for the experts [first, last) of w [E, n].
template <typename T> inline void gate_row(const T *x, const float *w, int n, int first, int last, float *logits) {
    constexpr int AT_ONCE = 4;
    for (int e = first; e < last; e += AT_ONCE) {
        const float *rows[AT_ONCE];
        for (int i = 0; i < AT_ONCE; ++i) rows[i] = w + int64_t(min(e + i, last - 1)) * n;
        Floats sums[AT_ONCE] = {};
        lanes(n, [&](int, auto get, auto) {
            Floats value = get(x);
            for (int i = 0; i < AT_ONCE; ++i) sums[i] += value * get(rows[i]);
        });
        for (int i = 0; i < min(AT_ONCE, last - e); ++i) logits[e + i] = sum(sums[i]);
    }
}

// The places of the `count` largest of `values` [n], by selection, which is least work for the few that are wanted. Among
// equals the first wins. What is chosen is -inf in `values` afterwards. Where values are NaN a place may come twice.
inline void choose(float *values, int n, int count, int *chosen) {
    for (int i = 0; i < count; ++i) {
        int best = 0;
        for (int j = 1; j < n; ++j) best = values[j] > values[best] ? j : best;
        chosen[i] = best;
        values[best] = -INFINITY;
    }
}

// Sum of the two largest, or the largest alone where `two` is false.
inline float best_of(const float *values, int n, bool two) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < n; ++i) {
        if (values[i] > first) {
            second = first;
            first = values[i];
        } else if (values[i] > second) {
            second = values[i];
        }
    }
    return two ? first + second : first;
}

// logits [E], overwritten by scores; weights and indices [k].
inline void route_row(float *logits, const Routing &routing, Scratch &scratch, float *weights, int64_t *indices) {
    int experts = routing.experts;
    if (routing.softmax) {
        float most = logits[0];
        for (int e = 1; e < experts; ++e) most = logits[e] > most ? logits[e] : most;
        Floats total{};
        lanes(experts, [&](int, auto get, auto put) { put(logits, exponential(get(logits) - most)); });
        lanes(experts, [&](int, auto get, auto) { total += get(logits); });
        float scale = 1.0f / sum(total);
        lanes(experts, [&](int, auto get, auto put) { put(logits, get(logits) * scale); });
    } else {
        // The exponent is held below overflow: a score of e^-80 is 0 beside any other.
        lanes(experts, [&](int, auto get, auto put) {
            Floats x = get(logits);
            Floats held = x < -80.0f ? splat(-80.0f) : x;
            put(logits, 1.0f / (1.0f + exponential(-held)));
        });
    }
    Scratch::Hold hold(scratch);
    float *choice = scratch.take<float>(size_t(experts));
    for (int e = 0; e < experts; ++e) choice[e] = logits[e] + (routing.bias != nullptr ? routing.bias[e] : 0.0f);
    if (routing.method != 0 && routing.top_groups < routing.groups) {
        int size = experts / routing.groups;
        float *groups = scratch.take<float>(size_t(routing.groups));
        int *kept = scratch.take<int>(size_t(routing.groups));
        for (int g = 0; g < routing.groups; ++g) groups[g] = best_of(choice + g * size, size, routing.method == 2);
        choose(groups, routing.groups, routing.top_groups, kept);
        for (int g = 0; g < routing.groups; ++g) {
            bool barred = true;
            for (int i = 0; i < routing.top_groups; ++i) barred = barred && kept[i] != g;
            for (int e = g * size; barred && e < (g + 1) * size; ++e) choice[e] = -INFINITY;
        }
    }
    int *chosen = scratch.take<int>(size_t(routing.top_k));
    choose(choice, experts, routing.top_k, chosen);
    float total = 0;
    for (int i = 0; i < routing.top_k; ++i) {
        indices[i] = chosen[i];
        weights[i] = logits[chosen[i]];
        total += weights[i];
    }
    float scale = routing.normalise ? routing.scale / (total + 1e-20f) : routing.scale;
    for (int i = 0; i < routing.top_k; ++i) weights[i] *= scale;
}

} // namespace arc::ARC_LEVEL
