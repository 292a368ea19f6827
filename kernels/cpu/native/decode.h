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

// Scores [count, GROUP] of the tokens of a block become weights; `partial` moves to the new largest score. scores are
// scaled; the tokens at `visible[column]` and after it are hidden.
inline void weigh(float *scores, int count, int first, const int *visible, Partial partial, int column, int used, float scale,
                  float *correction) {
    for (int i = 0; i < GROUP; i += LANES) {
        Floats before = load(partial.most + column + i), most = before;
        for (int t = 0; t < count; ++t) {
            float *row = scores + t * GROUP + i;
            Floats score = load(row) * scale;
            store(row, score);
            for (int j = 0; j < LANES && i + j < used; ++j) {
                if (first + t >= visible[i + j]) row[j] = -INFINITY;
            }
            most = larger(load(row), most);
        }
        Floats held = most == -INFINITY ? Floats{} : most; // nothing seen yet: every weight is 0
        Floats moved = exponential(before - held), sum = load(partial.sums + column + i) * moved;
        for (int t = 0; t < count; ++t) {
            float *row = scores + t * GROUP + i;
            Floats weight = exponential(load(row) - held);
            store(row, weight);
            sum += weight;
        }
        store(correction + i, moved);
        store(partial.most + column + i, most);
        store(partial.sums + column + i, sum);
    }
}

// q [columns, width] against tokens [first, last) of one row. visible [columns]: how many of the row's tokens each sees.
template <typename T>
inline void attend(const T *q, int columns, const T *cache, int width, int, Pages pages, int first, int last,
                   const int *visible, float scale, Partial partial, Scratch &scratch) {
    int groups = (columns + GROUP - 1) / GROUP, wide = int(round_up(width, 32));
    float *panels = scratch.take<float>(size_t(groups) * width * GROUP);
    for (int g = 0; g < groups; ++g) {
        float *panel = panels + int64_t(g) * width * GROUP;
        for (int j = 0; j < GROUP; ++j) {
            int column = g * GROUP + j;
            const T *from = q + int64_t(column) * width;
            for (int i = 0; i < width; ++i) panel[i * GROUP + j] = column < columns ? widen(from[i]) : 0;
        }
    }
    partial.clear(columns);
    float *block_rows = scratch.take<float>(size_t(BLOCK) * wide);
    float *scores = scratch.take<float>(BLOCK * GROUP);
    alignas(64) float correction[GROUP];
    const T *tokens[BLOCK];
    for (int start = first; start < last; start += BLOCK) {
        int count = min(BLOCK, last - start);
        pages.rows(cache, width, start, count, tokens);
        for (int t = 0; t < count; ++t) {
            const T *row = tokens[t];
            float *to = block_rows + t * wide;
            lanes(width, [&](int, auto get, auto put) { put(to, get(row)); });
            for (int i = width; i < wide; ++i) to[i] = 0;
        }
        for (int g = 0; g < groups; ++g) {
            int column = g * GROUP, used = min(GROUP, columns - column);
            Tiles tiles(count);
            for (int tile = 0; tile < tiles.count; ++tile) {
                int t = tiles.start(tile), rows = tiles.start(tile + 1) - t;
                const float *a[TILE_ROWS];
                for (int r = 0; r < rows; ++r) a[r] = block_rows + (t + r) * wide;
                const float *panel = panels + int64_t(g) * width * GROUP;
                with_rows(rows, [&](auto r) {
                    column_blocks<ReadFloats, r, false>(a, width, panel, GROUP, scores + t * GROUP, GROUP, GROUP);
                });
            }
            weigh(scores, count, start, visible + column, partial, column, used, scale, correction);
            float *out = partial.out + int64_t(column) * partial.stride;
            for (int j = 0; j < used; ++j) {
                if (correction[j] == 1.0f) continue;
                float *row = out + int64_t(j) * partial.stride, by = correction[j];
                for (int i = 0; i < partial.stride; i += LANES) store(row + i, load(row + i) * by);
            }
            Tiles column_tiles(used);
            for (int tile = 0; tile < column_tiles.count; ++tile) {
                int j = column_tiles.start(tile), rows = column_tiles.start(tile + 1) - j;
                const float *a[TILE_ROWS];
                for (int r = 0; r < rows; ++r) a[r] = scores + j + r;
                float *to = out + int64_t(j) * partial.stride;
                with_rows(rows, [&](auto r) {
                    column_blocks<ReadFloats, r, true, GROUP>(a, count, block_rows, wide, to, partial.stride,
                                                                     partial.stride);
                });
            }
        }
    }
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
