// decode.h's inner part for bf16 by AMX. A chunk's scores are known before its values are read, so the sums of its values stay
// in tiles from its first token to its last.
//
// Scores are [tokens, columns]: tokens are tiles of A as they lie in the cache, and the queries are laid out as B once. Values
// are [columns, latents]: the weights, turned round, are A, and as B two tokens' values must alternate, which costs two
// operations a line of 64 bytes, for all columns together.

#pragma once

#include "amx.h"
#include "decode.h"

#if ARC_AMX

namespace arc::ARC_LEVEL {

constexpr int AMX_TOKENS = TILE_DEPTH; // of a block: as many weights as a tile of A has in a row

// 16 x 16 words, rows to columns: the pairs of lanes of ever larger parts of the vector change places.
inline void turn(__m512i *rows) {
    __m512i part[16];
    for (int i = 0; i < 16; i += 2) {
        part[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        part[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(part[i], part[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(part[i], part[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(part[i + 1], part[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(part[i + 1], part[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        part[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
        part[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
        part[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
        part[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; ++i) {
        rows[i] = _mm512_shuffle_i32x4(part[i], part[i + 8], 0x88);
        rows[i + 8] = _mm512_shuffle_i32x4(part[i], part[i + 8], 0xdd);
    }
}

inline __mmask32 first_values(int count) { return count >= 32 ? ~0u : (1u << count) - 1; }

// Lines of the next item's tokens, some at a time: all at once they would hold up what is read now.
class Ahead {
public:
    Ahead(const Soon<bf16> &soon, int width) : soon_(soon), width_(width) {}
    int lines() const { return soon_.count * ((width_ + TILE_DEPTH - 1) / TILE_DEPTH); }
    void ask(int count) {
        for (; count > 0 && token_ < soon_.count; --count) {
            prefetch(soon_.tokens[token_] + value_);
            value_ += TILE_DEPTH;
            if (value_ >= width_) value_ = 0, ++token_;
        }
    }

private:
    const Soon<bf16> &soon_;
    const int width_;
    int token_ = 0, value_ = 0;
};

// Up to TILE columns' queries [columns, width] as B: [deep / 2][TILE] pairs, zeros for what is missing.
inline void query_tiles(const bf16 *q, int columns, int width, int deep, uint32_t *panel) {
    for (int i = 0; i < deep; i += TILE_DEPTH, panel += TILE * TILE) {
        __m512i rows[TILE];
        __mmask32 mask = first_values(width - i);
        for (int c = 0; c < TILE; ++c) {
            rows[c] = c < columns ? _mm512_maskz_loadu_epi16(mask, q + int64_t(c) * width + i) : _mm512_setzero_si512();
        }
        turn(rows);
        for (int p = 0; p < TILE; ++p) _mm512_storeu_si512(panel + p * TILE, rows[p]);
    }
}

// scores [N * TILE, TILE] of N = 2 or 4 tiles of tokens. next: as many tokens that are asked for on the way; null: none.
template <int N>
inline void score_tiles(const RowTile *tokens, const uint32_t *panel, int deep, float *scores, const bf16 *const *next) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (N == 4) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int i = 0; i < deep; i += TILE_DEPTH, panel += TILE * TILE) {
        _tile_loadd(6, panel, TILE * 4);
        _tile_loadd(4, tokens[0].base + i, tokens[0].stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, tokens[1].base + i, tokens[1].stride);
        _tile_dpbf16ps(1, 5, 6);
        if constexpr (N == 4) {
            _tile_loadd(4, tokens[2].base + i, tokens[2].stride);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(5, tokens[3].base + i, tokens[3].stride);
            _tile_dpbf16ps(3, 5, 6);
        }
        for (int t = 0; next != nullptr && t < N * TILE; ++t) prefetch(next[t] + i);
    }
    _tile_stored(0, scores, TILE * 4);
    _tile_stored(1, scores + TILE * TILE, TILE * 4);
    if constexpr (N == 4) {
        _tile_stored(2, scores + 2 * TILE * TILE, TILE * 4);
        _tile_stored(3, scores + 3 * TILE * TILE, TILE * 4);
    }
}

// Weights [AMX_TOKENS, TILE] in fp32 as A: [TILE, AMX_TOKENS].
inline void weight_tile(const float *weights, bf16 *tile) {
    __m512i pairs[TILE];
    for (int p = 0; p < TILE; ++p) {
        __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)load(weights + 2 * p * TILE)));
        __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)load(weights + (2 * p + 1) * TILE)));
        pairs[p] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
    turn(pairs);
    for (int c = 0; c < TILE; ++c) _mm512_storeu_si512(tile + c * AMX_TOKENS, pairs[c]);
}

// V * TILE values from `from` on of AMX_TOKENS tokens as V tiles of B. Within 32 values, the first tile has the lower four of
// every eight and the second one the upper four: that is how the processor makes two vectors alternate.
template <int V> inline void value_tiles(const bf16 *const *tokens, int from, int width, uint32_t *tiles) {
    for (int p = 0; p < TILE; ++p) {
        for (int v = 0; v < V; v += 2) {
            __mmask32 mask = first_values(width - from - v * TILE);
            __m512i first = _mm512_maskz_loadu_epi16(mask, tokens[2 * p] + from + v * TILE);
            __m512i second = _mm512_maskz_loadu_epi16(mask, tokens[2 * p + 1] + from + v * TILE);
            _mm512_storeu_si512(tiles + (v * TILE + p) * TILE, _mm512_unpacklo_epi16(first, second));
            _mm512_storeu_si512(tiles + ((v + 1) * TILE + p) * TILE, _mm512_unpackhi_epi16(first, second));
        }
    }
}

// sums [TILE][V * TILE] = weights^T values, for V * TILE values from `from` on, over `blocks` blocks of tokens. A block's values
// are laid out while the one before is multiplied.
template <int V>
inline void sum_tiles(const bf16 *weights, const bf16 *const *tokens, int blocks, int from, int width, Ahead &ahead, int ask,
                      float *sums) {
    constexpr int64_t BYTES = V * TILE * 4;
    alignas(64) uint32_t room[2][V * TILE * TILE];
    value_tiles<V>(tokens, from, width, room[0]);
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (V == 4) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int b = 0; b < blocks; ++b, weights += TILE * AMX_TOKENS) {
        tokens += AMX_TOKENS;
        ahead.ask(ask);
        if (b + 1 < blocks) value_tiles<V>(tokens, from, width, room[(b + 1) % 2]);
        const uint32_t *tiles = room[b % 2];
        settle(tiles);
        _tile_loadd(4, weights, AMX_TOKENS * 2);
        _tile_loadd(6, tiles, TILE * 4);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, tiles + TILE * TILE, TILE * 4);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (V == 4) {
            _tile_loadd(6, tiles + 2 * TILE * TILE, TILE * 4);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(7, tiles + 3 * TILE * TILE, TILE * 4);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    _tile_stored(0, sums, BYTES);
    _tile_stored(1, sums + TILE, BYTES);
    if constexpr (V == 4) {
        _tile_stored(2, sums + 2 * TILE, BYTES);
        _tile_stored(3, sums + 3 * TILE, BYTES);
    }
}

// 32 sums of value_tiles' order in their own.
inline void join_halves(const float *sums, float *out) {
    __m512 lower = _mm512_loadu_ps(sums), upper = _mm512_loadu_ps(sums + 16);
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    _mm512_storeu_ps(out, _mm512_permutex2var_ps(lower, first, upper));
    _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(lower, second, upper));
}

// What a chunk's groups of TILE columns have in common.
struct AmxChunk {
    const bf16 *tokens[CHUNK];
    int count, whole, width; // whole: count, filled up to blocks with the last token, which weighs nothing there
    int groups, columns;
    float *scores; // [groups][whole][TILE]
    bf16 *weights; // [groups][whole / AMX_TOKENS][TILE][AMX_TOKENS]
};

inline void amx_scores(const AmxChunk &chunk, const bf16 *q, Scratch &scratch) {
    int deep = int(round_up(chunk.width, TILE_DEPTH)), size = deep / 2 * TILE;
    uint32_t *panels = scratch.take<uint32_t>(size_t(chunk.groups) * size);
    for (int g = 0; g < chunk.groups; ++g) {
        query_tiles(q + int64_t(g) * TILE * chunk.width, min(TILE, chunk.columns - g * TILE), chunk.width, deep,
                    panels + int64_t(g) * size);
    }
    for (int t = 0, many; t < chunk.whole; t += many) {
        Scratch::Hold hold(scratch);
        many = chunk.whole - t >= 2 * AMX_TOKENS ? 2 * AMX_TOKENS : AMX_TOKENS;
        RowTile tiles[4];
        for (int i = 0; i < many / TILE; ++i) tiles[i] = row_tile(chunk.tokens + t + i * TILE, TILE, chunk.width, scratch);
        settle(tiles);
        for (int g = 0; g < chunk.groups; ++g) {
            bool more = g == 0 && t + 2 * many <= chunk.whole;
            const bf16 *const *next = more ? chunk.tokens + t + many : nullptr;
            float *to = chunk.scores + (int64_t(g) * chunk.whole + t) * TILE;
            const uint32_t *panel = panels + int64_t(g) * size;
            if (many == AMX_TOKENS) score_tiles<2>(tiles, panel, deep, to, next);
            else score_tiles<4>(tiles, panel, deep, to, next);
        }
    }
}

// A group's scores to weights. visible [columns]: of the chunk's tokens.
inline void amx_weigh(const AmxChunk &chunk, int group, int first, const int *visible, float scale, Partial partial) {
    float *scores = chunk.scores + int64_t(group) * chunk.whole * TILE;
    int column = group * TILE, used = min(TILE, chunk.columns - column), least = visible[column] - first;
    for (int i = 0; i < chunk.whole * TILE; i += TILE) store(scores + i, load(scores + i) * scale);
    for (int t = max(0, min(chunk.count, least)); t < chunk.whole; ++t) {
        for (int c = 0; c < TILE; ++c) {
            if (t >= chunk.count || (c < used && first + t >= visible[column + c])) scores[t * TILE + c] = -INFINITY;
        }
    }
    float correction[TILE]; // nothing was summed up before
    weigh<TILE>(scores, chunk.whole * TILE, partial, column, correction);
    bf16 *to = chunk.weights + int64_t(group) * chunk.whole * TILE;
    for (int t = 0; t < chunk.whole; t += AMX_TOKENS) weight_tile(scores + t * TILE, to + t * TILE);
}

// A group's weighted sums of V * TILE values from `from` on.
template <int V> inline void amx_values(const AmxChunk &chunk, int group, int from, Ahead &ahead, int ask, Partial partial) {
    alignas(64) float sums[TILE * V * TILE];
    sum_tiles<V>(chunk.weights + int64_t(group) * chunk.whole * TILE, chunk.tokens, chunk.whole / AMX_TOKENS, from, chunk.width,
                 ahead, ask, sums);
    for (int c = 0; c < min(TILE, chunk.columns - group * TILE); ++c) {
        float *out = partial.out + int64_t(group * TILE + c) * partial.stride + from;
        for (int v = 0; v < V * TILE; v += 32) join_halves(sums + c * V * TILE + v, out + v);
    }
}

inline void attend(const bf16 *q, int columns, const bf16 *cache, int width, int rank, Pages pages, int first, int last,
                   const int *visible, float scale, Partial partial, const Soon<bf16> &soon, Scratch &scratch) {
    AmxChunk chunk;
    chunk.count = last - first;
    chunk.whole = int(round_up(chunk.count, AMX_TOKENS));
    chunk.width = width;
    chunk.columns = columns;
    chunk.groups = (columns + TILE - 1) / TILE;
    pages.rows(cache, width, first, chunk.count, chunk.tokens);
    for (int t = chunk.count; t < chunk.whole; ++t) chunk.tokens[t] = chunk.tokens[chunk.count - 1];
    size_t values = size_t(chunk.groups) * chunk.whole * TILE;
    chunk.scores = scratch.take<float>(values);
    chunk.weights = scratch.take<bf16>(values);
    partial.clear(columns);
    amx_scores(chunk, q, scratch);
    Ahead ahead(soon, width);
    int steps = chunk.groups * (chunk.whole / AMX_TOKENS) * ((rank + 4 * TILE - 1) / (4 * TILE));
    int ask = (ahead.lines() + steps - 1) / steps;
    for (int g = 0; g < chunk.groups; ++g) {
        amx_weigh(chunk, g, first, visible, scale, partial);
        int from = 0;
        for (; from + 4 * TILE <= rank; from += 4 * TILE) amx_values<4>(chunk, g, from, ahead, ask, partial);
        for (; from < rank; from += 2 * TILE) amx_values<2>(chunk, g, from, ahead, ask, partial);
    }
}

} // namespace arc::ARC_LEVEL

#endif
