// decode.h's inner part for bf16 on processors with the bf16 dot product: nothing is widened, and no key is transposed.
//
// The lanes of the scores are columns, so a softmax needs no sums across lanes. Up to 8 columns take two lanes each, one for
// every second pair of values, which halves the steps; more take 16 at a time.

#pragma once

#include "decode_types.h"

#if ARC_BF16_DOT

namespace arc::ARC_LEVEL {

constexpr int AT_ONCE = 8; // tokens whose scores are summed up together, and columns whose results are

inline __m512bh as_pairs(__m512i words) { return (__m512bh)words; }

// The values of `columns` queries [columns, width] as dot_scores reads them: [steps][16] pairs.
template <int G> inline int steps_of(int width) { return (width + (G == 8 ? 3 : 1)) / (G == 8 ? 4 : 2); }
template <int G> inline void query_panel(const bf16 *q, int columns, int width, uint32_t *panel) {
    constexpr int SPLIT = 16 / G; // pairs of one column in a step
    int steps = steps_of<G>(width);
    for (int i = 0; i < steps * 16; ++i) panel[i] = 0;
    for (int c = 0; c < columns; ++c) {
        const bf16 *row = q + int64_t(c) * width;
        for (int p = 0; p < width / 2; ++p) std::memcpy(panel + p / SPLIT * 16 + c * SPLIT + p % SPLIT, row + 2 * p, 4);
        if (width % 2) panel[width / 2 / SPLIT * 16 + c * SPLIT + width / 2 % SPLIT] = row[width - 1].bits;
    }
}

// scores [AT_ONCE, G] of AT_ONCE tokens. `next`: as in decode.h's score.
template <int G>
inline void dot_scores(const bf16 *const *tokens, const bf16 *const *next, int width, const uint32_t *panel, float *scores) {
    constexpr int STEP = G == 8 ? 4 : 2;
    auto spread = [](const bf16 *from) {
        if constexpr (G == 8) {
            int64_t four;
            std::memcpy(&four, from, 8);
            return as_pairs(_mm512_set1_epi64(four));
        } else {
            int32_t two;
            std::memcpy(&two, from, 4);
            return as_pairs(_mm512_set1_epi32(two));
        }
    };
    // Two sums a token: one alone would wait for each product before it could start the next.
    __m512 sums[2][AT_ONCE];
    for (int r = 0; r < AT_ONCE; ++r) sums[0][r] = sums[1][r] = _mm512_setzero_ps();
    int i = 0;
    for (; i + 2 * STEP <= width; i += 2 * STEP) {
        if (i % 32 == 0) { // a cache line of 64 bytes
            for (int r = 0; r < AT_ONCE; ++r) prefetch(next[r] + i);
        }
        __m512bh first = as_pairs(_mm512_loadu_si512(panel)), second = as_pairs(_mm512_loadu_si512(panel + 16));
        panel += 32;
        for (int r = 0; r < AT_ONCE; ++r) sums[0][r] = _mm512_dpbf16_ps(sums[0][r], spread(tokens[r] + i), first);
        for (int r = 0; r < AT_ONCE; ++r) sums[1][r] = _mm512_dpbf16_ps(sums[1][r], spread(tokens[r] + i + STEP), second);
    }
    for (; i < width; i += STEP, panel += 16) {
        for (int r = 0; r < AT_ONCE; ++r) {
            bf16 rest[STEP] = {};
            std::memcpy(rest, tokens[r] + i, size_t(min(STEP, width - i)) * 2);
            sums[0][r] = _mm512_dpbf16_ps(sums[0][r], spread(rest), as_pairs(_mm512_loadu_si512(panel)));
        }
    }
    for (int r = 0; r < AT_ONCE; ++r) {
        __m512 sum = _mm512_add_ps(sums[0][r], sums[1][r]);
        if constexpr (G == 8) {
            sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0xb1)); // both lanes of a column
            _mm256_storeu_ps(scores + r * 8, _mm512_castps512_ps256(_mm512_maskz_compress_ps(0x5555, sum)));
        } else {
            _mm512_storeu_ps(scores + r * 16, sum);
        }
    }
}

// Scores [BLOCK, G], scaled and with -inf where hidden, become weights: pairs [BLOCK / 2][G] of tokens 2j and 2j + 1.
// `correction` [16] is by how much what was summed up before weighs less now.
template <int G>
inline void dot_weigh(const float *scores, int count, Partial partial, int column, uint32_t *weights, float *correction) {
    constexpr int TOKENS = 16 / G; // of one vector
    auto both = [](const float *eight) {
        __m256 half = _mm256_loadu_ps(eight);
        return (Floats)_mm512_insertf32x8(_mm512_castps256_ps512(half), half, 1);
    };
    auto high_half = [](Floats value) { return (Floats)_mm512_shuffle_f32x4((__m512)value, (__m512)value, 0x4e); };
    Floats before = G == 8 ? both(partial.most + column) : load(partial.most + column), most = before;
    int vectors = (count + 1) / 2 * 2 / TOKENS;
    for (int i = 0; i < vectors; ++i) most = larger(load(scores + i * 16), most);
    if (G == 8) most = larger(high_half(most), most);
    Floats held = most == -INFINITY ? Floats{} : most;
    Floats moved = exponential(before - held), total{};
    auto weight = [&](int i) {
        Floats value = exponential(load(scores + i * 16) - held);
        total += value;
        return _mm512_cvtneps_pbh((__m512)value);
    };
    for (int j = 0; j < (count + 1) / 2; ++j) {
        if constexpr (G == 8) {
            __m256i two = (__m256i)weight(j);
            __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(two));
            __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(two, 1));
            _mm256_storeu_si256((__m256i *)(weights + j * 8), _mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
        } else {
            __m512i low = _mm512_cvtepu16_epi32((__m256i)weight(2 * j));
            __m512i high = _mm512_cvtepu16_epi32((__m256i)weight(2 * j + 1));
            _mm512_storeu_si512(weights + j * 16, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
    }
    if (G == 8) total += high_half(total);
    store(correction, moved);
    if constexpr (G == 8) {
        __m256 sums = _mm256_fmadd_ps(_mm256_loadu_ps(partial.sums + column), _mm512_castps512_ps256((__m512)moved),
                                      _mm512_castps512_ps256((__m512)total));
        _mm256_storeu_ps(partial.sums + column, sums);
        _mm256_storeu_ps(partial.most + column, _mm512_castps512_ps256((__m512)most));
    } else {
        store(partial.sums + column, load(partial.sums + column) * moved + total);
        store(partial.most + column, most);
    }
}

// out [C, stride] = out * correction + weights^T tokens, over the first `rank` values; weights point at their first column.
template <int C>
inline void dot_values(const bf16 *const *tokens, int count, int rank, const uint32_t *weights, int group,
                       const float *correction, float *out, int stride) {
    alignas(64) static const uint16_t LOW[32] = {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
                                                 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(LOW), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int d = 0; d < rank; d += 32) {
        __mmask32 mask = rank - d >= 32 ? ~0u : (1u << (rank - d)) - 1;
        __m512 sums[C][2];
        for (int c = 0; c < C; ++c) {
            __m512 by = _mm512_set1_ps(correction[c]);
            for (int v = 0; v < 2; ++v) sums[c][v] = _mm512_mul_ps(_mm512_loadu_ps(out + c * stride + d + v * 16), by);
        }
        for (int j = 0; j < count; j += 2) {
            __m512i first = _mm512_maskz_loadu_epi16(mask, tokens[j] + d);
            __m512i second = _mm512_maskz_loadu_epi16(mask, tokens[j + 1] + d);
            __m512bh pairs[2] = {as_pairs(_mm512_permutex2var_epi16(first, low, second)),
                                 as_pairs(_mm512_permutex2var_epi16(first, high, second))};
            const uint32_t *mine = weights + j / 2 * group;
            for (int c = 0; c < C; ++c) {
                __m512bh weight = as_pairs(_mm512_set1_epi32(int32_t(mine[c])));
                for (int v = 0; v < 2; ++v) sums[c][v] = _mm512_dpbf16_ps(sums[c][v], pairs[v], weight);
            }
        }
        for (int c = 0; c < C; ++c) {
            for (int v = 0; v < 2; ++v) _mm512_storeu_ps(out + c * stride + d + v * 16, sums[c][v]);
        }
    }
}

// One group of up to G columns, from `column` on, against the tokens of a block.
template <int G>
inline void dot_group(const bf16 *const *tokens, const bf16 *const *next, int start, int count, int width, int rank, const uint32_t *panel, int used,
                      const int *visible, float scale, Partial partial, int column) {
    alignas(64) float scores[BLOCK * G], correction[16];
    alignas(64) uint32_t weights[BLOCK / 2 * G];
    for (int t = 0; t < count; t += AT_ONCE) dot_scores<G>(tokens + t, next + t, width, panel, scores + t * G);
    int even = (count + 1) / 2 * 2, least = visible[0]; // of the columns; the first query sees least
    for (int i = 0; i < even * G; i += 16) store(scores + i, load(scores + i) * scale);
    for (int t = max(0, min(count, least - start)); t < even; ++t) {
        for (int c = 0; c < G; ++c) {
            if (t >= count || (c < used && start + t >= visible[c])) scores[t * G + c] = -INFINITY;
        }
    }
    dot_weigh<G>(scores, count, partial, column, weights, correction);
    for (int c = 0; c < used; c += AT_ONCE) {
        float *out = partial.out + int64_t(column + c) * partial.stride;
        if (used - c <= 4) dot_values<4>(tokens, even, rank, weights + c, G, correction + c, out, partial.stride);
        else dot_values<8>(tokens, even, rank, weights + c, G, correction + c, out, partial.stride);
    }
}

inline void attend(const bf16 *q, int columns, const bf16 *cache, int width, int rank, Pages pages, int first, int last,
                   const int *visible, float scale, Partial partial, const Soon<bf16> &soon, Scratch &scratch) {
    // Whole groups of 16, and what is left of 8 or of 16.
    int groups = (columns + 15) / 16;
    uint32_t *panels = scratch.take<uint32_t>(size_t(groups) * steps_of<16>(width) * 16);
    auto panel = [&](int g) { return panels + int64_t(g) * steps_of<16>(width) * 16; };
    for (int g = 0; g < groups; ++g) {
        int used = min(16, columns - g * 16);
        const bf16 *from = q + int64_t(g) * 16 * width;
        if (used <= 8) query_panel<8>(from, used, width, panel(g));
        else query_panel<16>(from, used, width, panel(g));
    }
    partial.clear(columns);
    const bf16 *blocks[2][BLOCK], **tokens = blocks[0], **next = blocks[1];
    pages.rows(cache, width, first, min(BLOCK, last - first), next);
    for (int start = first; start < last; start += BLOCK) {
        const bf16 **now = next;
        next = tokens;
        tokens = now;
        int count = min(BLOCK, last - start), after = min(BLOCK, last - start - count);
        // Past the last token stands the last one again, with a weight of zero.
        for (int t = count; t < BLOCK; ++t) tokens[t] = tokens[count - 1];
        if (after > 0) pages.rows(cache, width, start + count, after, next);
        fill_next(next, after, soon, tokens[0]);
        for (int g = 0; g < groups; ++g) {
            int column = g * 16, used = min(16, columns - column);
            const bf16 **asked = g == 0 ? next : tokens; // once is enough
            if (used <= 8) {
                dot_group<8>(tokens, asked, start, count, width, rank, panel(g), used, visible + column, scale, partial, column);
            } else {
                dot_group<16>(tokens, asked, start, count, width, rank, panel(g), used, visible + column, scale, partial, column);
            }
        }
    }
}

} // namespace arc::ARC_LEVEL

#endif
