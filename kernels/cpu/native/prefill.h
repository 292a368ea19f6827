// Causal attention of prompt chunks, expanded: keys and values of each head are made from the latents once, in blocks of
// KEYS tokens laid out as panels, and then read by all the chunk's queries.
//
// Query rows meet a block of keys as rows meet a panel of a weight, so both products are product.h's. The softmax is summed
// up block by block, as in decode.h.

#pragma once

#include "decode.h"
#include "product.h"

namespace arc::ARC_LEVEL {

constexpr int KEYS = WIDE;   // tokens of a block of keys
constexpr int QUERIES = 48;  // of an item: tiles that share a block of keys while the cache holds it

template <typename T> inline int depth(int k) { return (k + Stored<T>::STEP - 1) / Stored<T>::STEP; }

// What a head's keys and values of one block take, in units of Stored<T>::Value.
template <typename T> struct KeyBlock {
    typedef typename Stored<T>::Value Value;
    Value *keys;   // [depth(nope)][KEYS]
    Value *values; // [KEYS / STEP][padded v]
    static int64_t size(int nope, int v) {
        return int64_t(depth<T>(nope)) * KEYS + int64_t(KEYS / Stored<T>::STEP) * round_up(v, NARROW);
    }
    KeyBlock(Value *base, int nope) : keys(base), values(base + int64_t(depth<T>(nope)) * KEYS) {}
};

// Rows of sums to rows of a panel: as they are, or two and two as pairs.
inline void store_rows(const float *c, int c_stride, int rows, float *to, int64_t stride, int width) {
    for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < width; i += LANES) store(to + r * stride + i, load(c + r * c_stride + i));
    }
}
inline void store_rows(const float *c, int c_stride, int rows, uint32_t *to, int64_t stride, int width) {
    for (int r = 0; r < rows; r += 2) {
        for (int i = 0; i < width; i += LANES) {
            Words low = round_to_bf16(load(c + r * c_stride + i));
            Words high = r + 1 < rows ? round_to_bf16(load(c + (r + 1) * c_stride + i)) : Words{};
            Words both = low | (high << 16);
            std::memcpy(to + r / 2 * stride + i, &both, sizeof both);
        }
    }
}

// Rows [count][k] as a panel whose columns they are: [depth(k)][KEYS], zeros past `count`.
inline void rows_to_panel(const float *const *rows, int count, int k, float *panel) {
    for (int i = 0; i < k; ++i) {
        for (int j = 0; j < KEYS; ++j) panel[i * KEYS + j] = j < count ? rows[j][i] : 0;
    }
}
inline void rows_to_panel(const bf16 *const *rows, int count, int k, uint32_t *panel) {
    for (int i = 0; i < k / 2; ++i) {
        for (int j = 0; j < count; ++j) std::memcpy(panel + i * KEYS + j, rows[j] + 2 * i, 4);
        for (int j = count; j < KEYS; ++j) panel[i * KEYS + j] = 0;
    }
    if (k % 2) {
        for (int j = 0; j < KEYS; ++j) panel[k / 2 * KEYS + j] = j < count ? rows[j][k - 1].bits : 0;
    }
}

// The latents and rope parts of a block of tokens, as panels; both are the same for all heads.
template <typename T>
inline void latent_panels(const T *const *tokens, int count, int rank, int rope, typename Stored<T>::Value *latents,
                          typename Stored<T>::Value *ropes) {
    rows_to_panel(tokens, count, rank, latents);
    const T *tails[KEYS];
    for (int t = 0; t < count; ++t) tails[t] = tokens[t] + rank;
    rows_to_panel(tails, count, rope, ropes);
}

// One head's keys of a block: key_rows [nope, rank] times the latents as a panel.
template <typename T>
inline void expand_keys(const T *key_rows, int nope, int rank, const typename Stored<T>::Value *latents,
                        typename Stored<T>::Value *keys, Scratch &scratch) {
    alignas(64) float c[TILE_ROWS<T> * WIDE];
    for (int d = 0; d < nope; d += TILE_ROWS<T>) {
        int rows = min(TILE_ROWS<T>, nope - d);
        const T *a[TILE_ROWS<T>];
        for (int r = 0; r < rows; ++r) a[r] = key_rows + int64_t(d + r) * rank;
        times<false>(a, rows, rank, latents, KEYS, c, WIDE, KEYS, latents, scratch);
        store_rows(c, WIDE, rows, keys + int64_t(d / Stored<T>::STEP) * KEYS, KEYS, KEYS);
    }
}

// One head's values of a block; those of tokens past `count` are zeros.
template <typename T>
inline void expand_values(const T *const *tokens, int count, const Matrix &value_up, typename Stored<T>::Value *values,
                          Scratch &scratch) {
    constexpr int STEP = Stored<T>::STEP;
    int stride = int(round_up(value_up.n, NARROW));
    alignas(64) float c[TILE_ROWS<T> * WIDE];
    for (int number = 0; number < panels(value_up.n); ++number) {
        Panel columns = panel(value_up.n, number);
        int width = min(columns.width, stride - columns.column);
        for (int t = 0; t < KEYS; t += TILE_ROWS<T>) {
            int room = min(TILE_ROWS<T>, KEYS - t), rows = max(0, min(room, count - t));
            const T *a[TILE_ROWS<T>];
            for (int r = 0; r < rows; ++r) a[r] = tokens[t + r];
            const void *data = panel_data(value_up, number);
            if (rows > 0) times_panel(a, rows, value_up, columns, data, data, c, scratch);
            for (int i = rows * WIDE; i < room * WIDE; ++i) c[i] = 0;
            store_rows(c, WIDE, room, values + int64_t(t / STEP) * stride + columns.column, stride, width);
        }
    }
}

// Up to QUERIES queries of one head, the first at place `first` of its row, against the row's blocks of keys.
// q and out are rows of `q_stride` and `out_stride` values.
template <typename T, class BlockOf, class RopesOf>
inline void attend_prompt(const T *q, int64_t q_stride, int count, int first, int nope, int rope, int v, float scale,
                          BlockOf &&block_of, RopesOf &&ropes_of, T *out, int64_t out_stride, Scratch &scratch) {
    int stride = int(round_up(v, NARROW));
    int64_t room = round_up(count, TILE_ROWS<T>) * stride; // `times` writes whole tiles
    float *sums = scratch.take<float>(size_t(room));
    float most[QUERIES], total[QUERIES];
    std::memset(sums, 0, size_t(room) * sizeof(float));
    for (int i = 0; i < count; ++i) most[i] = -INFINITY, total[i] = 0;
    alignas(64) float scores[TILE_ROWS<T> * KEYS];
    alignas(64) T weights[TILE_ROWS<T> * KEYS];
    Tiles<T> tiles(count);
    int last = first + count; // places that the last query sees
    for (int b = 0; b * KEYS < last; ++b) {
        KeyBlock<T> block = block_of(b);
        for (int tile = 0; tile < tiles.count; ++tile) {
            int start = tiles.start(tile), rows = tiles.start(tile + 1) - start;
            if (b * KEYS > first + start + rows - 1) continue; // nobody of the tile sees the block
            const T *a[TILE_ROWS<T>];
            for (int r = 0; r < rows; ++r) a[r] = q + (start + r) * q_stride;
            times<false>(a, rows, nope, block.keys, KEYS, scores, KEYS, KEYS, block.keys, scratch);
            for (int r = 0; r < rows; ++r) a[r] += nope;
            times<true>(a, rows, rope, ropes_of(b), KEYS, scores, KEYS, KEYS, ropes_of(b), scratch);
            for (int r = 0; r < rows; ++r) {
                float *row = scores + r * KEYS;
                int i = start + r, seen = min(KEYS, first + i + 1 - b * KEYS);
                for (int k = max(seen, 0); k < KEYS; ++k) row[k] = -INFINITY;
                Floats high = splat(most[i]);
                for (int k = 0; k < KEYS; k += LANES) {
                    Floats score = load(row + k) * scale;
                    store(row + k, score);
                    high = larger(score, high);
                }
                float now = largest(high), held = now == -INFINITY ? 0 : now;
                float moved = exponential(splat(most[i] - held))[0];
                Floats added{};
                for (int k = 0; k < KEYS; k += LANES) {
                    Floats weight = exponential(load(row + k) - held);
                    store(weights + r * KEYS + k, weight);
                    added += weight;
                }
                most[i] = now;
                total[i] = total[i] * moved + sum(added);
                float *mine = sums + int64_t(i) * stride;
                if (moved != 1.0f) {
                    for (int k = 0; k < stride; k += LANES) store(mine + k, load(mine + k) * moved);
                }
                a[r] = weights + r * KEYS;
            }
            times<true>(a, rows, KEYS, block.values, stride, sums + int64_t(start) * stride, stride, stride, block.values,
                        scratch);
        }
    }
    for (int i = 0; i < count; ++i) {
        float *mine = sums + int64_t(i) * stride;
        float by = 1.0f / total[i];
        T *to = out + i * out_stride;
        lanes(v, [&](int, auto get, auto put) { put(to, get(mine) * by); });
    }
}

} // namespace arc::ARC_LEVEL
