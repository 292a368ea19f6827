// Attention of a few query tokens a row over paged latents, absorbed: the latent is key and value at once (DeepSeek-V2,
// arXiv:2405.04434, 2.1.2).
//
// A row's queries and heads are columns that share its latents: each block of them is read once, whatever their number.
// The softmax is summed up block by block (Milakov and Gimelshein 2018, arXiv:1805.02867), over chunks of CHUNK tokens; the
// chunks of a long row are put together at the end. Where a row is cut depends on its length alone, so its result does not
// depend on the rest of the batch nor on the number of threads.

#pragma once

#include "decode_dot.h"
#include "decode_types.h"
#include "product.h"

namespace arc::ARC_LEVEL {

// The lanes are values of a latent, so that it is used as it lies in the cache, for a group of columns at once: COLUMNS, or
// FEW_COLUMNS where no more are left.
constexpr int COLUMNS = LANES >= 16 ? 8 : 4, FEW_COLUMNS = 4;
constexpr int READ = 2 * LANES; // values of a token that are read at once, as two vectors

// bf16 comes as every second value, which takes one operation a vector instead of two. Queries are laid out the same way, and
// sums are put in order at the end.
inline Floats read_half(const bf16 *from, int half) {
    Words both;
    std::memcpy(&both, from, sizeof both);
    return (Floats)(half == 0 ? both << 16 : both & 0xffff0000u);
}
inline Floats read_half(const float *from, int half) { return load(from + half * LANES); }

// Where read_half puts value i of a token.
inline int place_of(const bf16 *, int i) { return i / READ * READ + i % 2 * LANES + i % READ / 2; }
inline int place_of(const float *, int i) { return i; }

inline void put_in_order(const float *, float *, int) {}
inline void put_in_order(const bf16 *, float *sums, int n) {
    for (int i = 0; i < n; i += READ) {
        float halves[READ];
        std::memcpy(halves, sums + i, sizeof halves);
        for (int j = 0; j < LANES; ++j) {
            sums[i + 2 * j] = halves[j];
            sums[i + 2 * j + 1] = halves[LANES + j];
        }
    }
}

// C columns' queries [columns][width] as `score` reads them, [width / LANES][C][LANES]; what is missing is zeros.
template <int C, typename T> inline void query_panel(const T *q, int columns, int width, float *panel) {
    std::memset(panel, 0, size_t(round_up(width, READ)) * C * sizeof(float));
    for (int c = 0; c < columns; ++c) {
        for (int i = 0; i < width; ++i) {
            int place = place_of(q, i);
            panel[(place / LANES * C + c) * LANES + place % LANES] = widen(q[int64_t(c) * width + i]);
        }
    }
}

// Two vectors of LANES / SEGMENT sums each, of SEGMENT lanes: one vector of all of them, of half as many lanes.
template <int SEGMENT, int... I> inline Floats fold_two(Floats a, Floats b, std::integer_sequence<int, I...>) {
    constexpr int HALF = SEGMENT / 2;
    return pick<(I / HALF * SEGMENT + I % HALF)...>(a, b) + pick<(I / HALF * SEGMENT + HALF + I % HALF)...>(a, b);
}
// Lane i of LANES is the sum of vector i.
template <int COUNT = LANES> inline Floats sums_of(const Floats *vectors) {
    if constexpr (COUNT == 1) return *vectors;
    else
        return fold_two<2 * LANES / COUNT>(sums_of<COUNT / 2>(vectors), sums_of<COUNT / 2>(vectors + COUNT / 2),
                                           std::make_integer_sequence<int, LANES>());
}

// Scores [LANES / C][C] of so many tokens and C columns, scaled. `wide`: the tokens' width, a multiple of READ. `next`: tokens
// that are asked for on the way, so that they are in the second cache when their turn comes; all at once they would hold up
// the products.
template <int C, typename T>
inline void score(const T *const *tokens, const T *const *next, int wide, const float *panel, float scale, float *scores) {
    constexpr int TOKENS = LANES / C;
    Floats sums[LANES] = {};
    for (int i = 0; i < wide; i += READ) {
        for (int t = 0; t < TOKENS; ++t) prefetch(next[t] + i);
        for (int half = 0; half < 2; ++half, panel += C * LANES) {
            Floats values[TOKENS];
            for (int t = 0; t < TOKENS; ++t) values[t] = read_half(tokens[t] + i, half);
            for (int c = 0; c < C; ++c) {
                Floats query = load(panel + c * LANES);
                for (int t = 0; t < TOKENS; ++t) sums[t * C + c] += query * values[t];
            }
        }
    }
    store(scores, sums_of(sums) * scale);
}

// Scores [count][C], a multiple of LANES of them, become weights; the partial of C columns moves to the new largest score.
// correction [C]: by how much what was summed up before weighs less now.
template <int C> inline void weigh(float *scores, int values, Partial partial, int column, float *correction) {
    auto every = [](const float *columns) {
        float lanes[LANES];
        for (int i = 0; i < LANES; ++i) lanes[i] = columns[i % C];
        return load(lanes);
    };
    auto first = [](float *to, Floats value) { std::memcpy(to, &value, C * sizeof(float)); };
    Floats before = every(partial.most + column), most = before;
    for (int i = 0; i < values; i += LANES) most = larger(load(scores + i), most);
    most = folded<LANES, C>(most, larger);
    Floats held = most == -INFINITY ? Floats{} : most; // nothing seen yet: every weight is 0
    Floats moved = exponential(before - held), sum{};
    for (int i = 0; i < values; i += LANES) {
        Floats weight = exponential(load(scores + i) - held);
        store(scores + i, weight);
        sum += weight;
    }
    sum = folded<LANES, C>(sum, [](Floats a, Floats b) { return a + b; });
    first(partial.sums + column, every(partial.sums + column) * moved + sum);
    first(partial.most + column, most);
    first(correction, moved);
}

// out [C][stride] = out * correction + weights^T tokens, for `reads` times READ values from `from` on.
template <int C, int READS, typename T>
inline void add_values(const T *const *tokens, int count, int from, const float *weights, const float *correction, float *out,
                       int stride) {
    Floats sums[C][2 * READS];
    for (int c = 0; c < C; ++c) {
        for (int v = 0; v < 2 * READS; ++v) sums[c][v] = load(out + c * stride + from + v * LANES) * correction[c];
    }
    for (int t = 0; t < count; ++t, weights += C) {
        Floats values[2 * READS];
        for (int v = 0; v < 2 * READS; ++v) values[v] = read_half(tokens[t] + from + v / 2 * READ, v % 2);
        for (int c = 0; c < C; ++c) {
            Floats weight = splat(weights[c]);
            for (int v = 0; v < 2 * READS; ++v) sums[c][v] += weight * values[v];
        }
    }
    for (int c = 0; c < C; ++c) {
        for (int v = 0; v < 2 * READS; ++v) store(out + c * stride + from + v * LANES, sums[c][v]);
    }
}

// One group of C columns, `used` of them real, against the tokens of a block.
template <int C, typename T>
inline void attend_group(const T *const *tokens, const T *const *next, int start, int count, int wide, int rank,
                         const float *panel, int used, const int *visible, float scale, Partial partial, int column) {
    constexpr int TOKENS = LANES / C, READS = LANES / C / 2 > 0 ? LANES / C / 2 : 1;
    alignas(64) float scores[BLOCK * C];
    float correction[C];
    int whole = int(round_up(count, TOKENS)), least = visible[0]; // of the columns; the first query sees least
    for (int t = 0; t < whole; t += TOKENS) score<C>(tokens + t, next + t, wide, panel, scale, scores + t * C);
    for (int t = max(0, min(count, least - start)); t < whole; ++t) {
        for (int c = 0; c < C; ++c) {
            if (t >= count || (c < used && start + t >= visible[c])) scores[t * C + c] = -INFINITY;
        }
    }
    weigh<C>(scores, whole * C, partial, column, correction);
    float *out = partial.out + int64_t(column) * partial.stride;
    int from = 0;
    for (; from + READS * READ <= rank; from += READS * READ) {
        add_values<C, READS>(tokens, count, from, scores, correction, out, partial.stride);
    }
    for (; from < rank; from += READ) add_values<C, 1>(tokens, count, from, scores, correction, out, partial.stride);
}

// q [columns, width] against tokens [first, last) of one row. visible [columns]: how many of the row's tokens each sees.
template <typename T>
inline void attend(const T *q, int columns, const T *cache, int width, int rank, Pages pages, int first, int last,
                   const int *visible, float scale, Partial partial, const Soon<T> &soon, Scratch &scratch) {
    int wide = int(round_up(width, READ));
    auto groups = [&](auto &&body) {
        for (int column = 0; column < columns;) {
            if (columns - column > FEW_COLUMNS) {
                body(std::integral_constant<int, COLUMNS>(), column);
                column += COLUMNS;
            } else {
                body(std::integral_constant<int, FEW_COLUMNS>(), column);
                column += FEW_COLUMNS;
            }
        }
    };
    float *panels = scratch.take<float>(size_t(round_up(columns, COLUMNS)) * size_t(wide));
    groups([&](auto c, int column) {
        query_panel<c>(q + int64_t(column) * width, min(c, columns - column), width, panels + int64_t(column) * wide);
    });
    partial.clear(columns);
    // A read must not go past a token's end: where the last one would, tokens are copied, with zeros behind them.
    T *copies = wide == width ? nullptr : scratch.take<T>(size_t(BLOCK) * wide);
    if (copies != nullptr) std::memset(static_cast<void *>(copies), 0, size_t(BLOCK) * wide * sizeof(T));
    const T *blocks[2][BLOCK], **tokens = blocks[0], **next = blocks[1];
    pages.rows(cache, width, first, min(BLOCK, last - first), next);
    for (int start = first; start < last; start += BLOCK) {
        std::swap(tokens, next);
        int count = min(BLOCK, last - start), after = min(BLOCK, last - start - count);
        if (after > 0) pages.rows(cache, width, start + count, after, next);
        fill_next(next, after, soon, tokens[0]);
        for (int t = 0; copies != nullptr && t < count; ++t) {
            std::memcpy(static_cast<void *>(copies + t * wide), tokens[t], size_t(width) * sizeof(T));
            tokens[t] = copies + t * wide;
        }
        for (int t = count; t < BLOCK; ++t) tokens[t] = tokens[count - 1]; // their weights are zero
        groups([&](auto c, int column) {
            const T **asked = column == 0 ? next : tokens; // once is enough
            attend_group<c>(tokens, asked, start, count, wide, rank, panels + int64_t(column) * wide, min(c, columns - column),
                            visible + column, scale, partial, column);
        });
    }
    for (int c = 0; c < columns; ++c) put_in_order(cache, partial.out + int64_t(c) * partial.stride, int(round_up(rank, READ)));
}

// One column's result out of all chunks, each weighed by how far its largest score is below the largest of all.
template <typename T> inline void merge(const Partials &partials, int parts, int column, T *out) {
    float most = -INFINITY;
    for (int p = 0; p < parts; ++p) {
        float own = partials.part(p).most[column];
        most = own > most ? own : most;
    }
    float total = 0;
    for (int p = 0; p < parts; ++p) {
        Partial part = partials.part(p);
        total += part.sums[column] * exponential(splat(part.most[column] - most))[0];
    }
    for (int i = 0; i < partials.rank; i += LANES) {
        Floats sum{};
        for (int p = 0; p < parts; ++p) {
            Partial part = partials.part(p);
            float weight = exponential(splat(part.most[column] - most))[0] / total;
            sum += load(part.out + int64_t(column) * part.stride + i) * weight;
        }
        if (i + LANES <= partials.rank) store(out + i, sum);
        else store_some(out + i, sum, partials.rank - i);
    }
}

} // namespace arc::ARC_LEVEL
