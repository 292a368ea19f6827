// Gated MLPs: one for all tokens, or many of which each token takes a few.
//
// First product, SiLU, gate times up and the routing weight are one pass over a panel of 32 gate and 32 up columns. The
// second product's panels belong to whoever takes them, with all experts' sums of these columns, so that nothing is
// added by two threads and the order of the sums is always the same.

#pragma once

#include "pointwise.h"
#include "product.h"

namespace arc::ARC_LEVEL {

constexpr int INNER = WIDE / 2; // inner columns of one panel of gate_up

// Tokens of one block of the second product: with more, threads can share the few panels of a prompt's products.
constexpr int TOKEN_BLOCK = 256;

// The chosen (token, expert) pairs in the order of experts, and of tokens within one.
struct Dispatch {
    int *starts;    // [E + 1]: of each expert's pairs
    int *used;      // [E]: the experts that have any
    int *tokens;    // [T * k]
    float *weights; // [T * k]
};

// Sorts the pairs by counting; gives how many experts have any.
inline int dispatch(const int64_t *indices, const float *weights, int tokens, int top_k, int experts, const Dispatch &to) {
    for (int e = 0; e <= experts; ++e) to.starts[e] = 0;
    int pairs = tokens * top_k, used = 0;
    for (int i = 0; i < pairs; ++i) ++to.starts[indices[i] + 1];
    for (int e = 0; e < experts; ++e) {
        if (to.starts[e + 1] > 0) to.used[used++] = e;
        to.starts[e + 1] += to.starts[e];
    }
    // Each expert's start moves up as its pairs are placed, and all of them are moved back at the end.
    for (int i = 0; i < pairs; ++i) {
        int place = to.starts[indices[i]]++;
        to.tokens[place] = i / top_k;
        to.weights[place] = weights[i];
    }
    for (int e = experts; e > 0; --e) to.starts[e] = to.starts[e - 1];
    to.starts[0] = 0;
    return used;
}

inline int inner_stride(const Gated &mlp) { return mlp.gate_up.n / 2; }

// One panel of silu(x gate^T) * (x up^T) * weight, for rows of x. active [rows, inner_stride].
template <typename T, class RowOf>
inline void gated_panel(int rows, const Gated &mlp, int number, const void *soon, Scratch &scratch, RowOf &&row_of,
                        const float *weights, T *active) {
    int stride = inner_stride(mlp);
    panel_product<T>(rows, mlp.gate_up, number, soon, scratch, row_of, [&](int row, float *c) {
        Floats weight = splat(weights == nullptr ? 1.0f : weights[row]);
        T *to = active + int64_t(row) * stride + number * INNER;
        for (int i = 0; i < INNER; i += LANES) store(to + i, silu(load(c + i)) * load(c + INNER + i) * weight);
    });
}

// The first products of all experts that have tokens: an item is one panel of one of them.
struct ExpertPanels {
    ExpertPanels(const Gated *experts, const Dispatch &pairs, int used)
        : experts(experts), pairs(pairs), panels(inner_stride(experts[0]) / INNER), items(used * panels) {}
    int expert(int item) const { return pairs.used[item / panels]; }
    const void *soon(int next) const {
        return next < items ? panel_data(experts[expert(next)].gate_up, next % panels) : nullptr;
    }
    const Gated *experts;
    const Dispatch &pairs;
    const int panels, items;
};

// x_of(token) gives a row of x; active [pairs, inner_stride].
template <typename T, class XOf>
inline void routed_gated(Worker &worker, const ExpertPanels &all, XOf &&x_of, T *active) {
    const Dispatch &pairs = all.pairs;
    worker.each(all.items, [&](int item) {
        int expert = all.expert(item), start = pairs.starts[expert];
        const Gated &mlp = all.experts[expert];
        gated_panel<T>(
            pairs.starts[expert + 1] - start, mlp, item % all.panels, all.soon(worker.next(item)), worker.scratch,
            [&](int i) { return x_of(pairs.tokens[start + i]); }, pairs.weights + start,
            active + int64_t(start) * inner_stride(mlp));
    });
}

inline int first_at_least(const int *sorted, int from, int to, int value) {
    while (from < to) {
        int middle = (from + to) / 2;
        if (sorted[middle] < value) from = middle + 1;
        else to = middle;
    }
    return from;
}

// One panel of the second products of tokens [first, last), each expert's after the other. add(token, column, count, sums).
template <typename T, class Add>
inline void routed_down_panel(const Gated *experts, const Dispatch &pairs, int used, const T *active, int number, int first,
                              int last, Scratch &scratch, Add &&add) {
    for (int u = 0; u < used; ++u) {
        const Gated &expert = experts[pairs.used[u]];
        int start = pairs.starts[pairs.used[u]], end = pairs.starts[pairs.used[u] + 1];
        start = first_at_least(pairs.tokens, start, end, first);
        end = first_at_least(pairs.tokens, start, end, last);
        if (start == end) continue;
        Panel columns = panel(expert.down.n, number);
        int64_t stride = inner_stride(expert);
        const void *soon = u + 1 < used ? panel_data(experts[pairs.used[u + 1]].down, number) : nullptr;
        panel_product<T>(
            end - start, expert.down, number, soon, scratch, [&](int i) { return active + (start + i) * stride; },
            [&](int i, float *c) { add(pairs.tokens[start + i], columns.column, columns.used, c); });
    }
}

template <typename T, class Add>
inline void down_panel(const Gated &mlp, const T *active, int number, int first, int last, Scratch &scratch, Add &&add) {
    Panel columns = panel(mlp.down.n, number);
    int64_t stride = inner_stride(mlp);
    panel_product<T>(
        last - first, mlp.down, number, nullptr, scratch, [&](int i) { return active + (first + i) * stride; },
        [&](int i, float *c) { add(first + i, columns.column, columns.used, c); });
}

} // namespace arc::ARC_LEVEL
