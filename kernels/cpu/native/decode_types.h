// What both forms of decode attention work on: pages, chunks, and sums that are not yet a result.

#pragma once

namespace arc::ARC_LEVEL {

constexpr int BLOCK = 32; // tokens whose scores are known before their values are read
constexpr int CHUNK = 256;
constexpr int GROUP = 16; // columns are padded to it, the most that are computed together

inline int chunks(int length) { return (length + CHUNK - 1) / CHUNK; }

// One row's places in the paged cache.
struct Pages {
    Pages(const Rows &rows, int row) : table(rows.tables + row * rows.stride), size(rows.page_size) {}
    // The cached rows, `width` values each, of `count` tokens from `first` on. One division, not one a token.
    template <typename T> void rows(const T *cache, int width, int first, int count, const T **to) const {
        int page = first / size, offset = first % size;
        const T *start = cache + table[page] * size * width;
        for (int t = 0; t < count; ++t, ++offset) {
            if (offset == size) {
                offset = 0;
                start = cache + table[++page] * size * width;
            }
            to[t] = start + int64_t(offset) * width;
        }
    }
    const int64_t *table;
    int size;
};

// The first tokens of the item that the thread takes next, as far as it is known: asked for while this one ends, or its start
// would wait for memory.
template <typename T> struct Soon {
    static constexpr int MOST = 64;
    const T *tokens[MOST];
    int count = 0;
};

// A block's tokens that are asked for, of which `count` are of this item: else the next item's, or one that is there already.
template <typename T> inline void fill_next(const T **next, int count, const Soon<T> &soon, const T *there) {
    for (int t = count; t < BLOCK; ++t) {
        next[t] = count > 0 ? next[count - 1] : soon.count > 0 ? soon.tokens[min(t, soon.count - 1)] : there;
    }
}

// What is known of a group's columns after some tokens: the largest score, the sum of weights, the weighted sum of latents.
// Columns are padded to GROUP in `most` and `sums`, and to 8 in `out`.
struct Partial {
    float *most; // [columns]
    float *sums; // [columns]
    float *out;  // [columns, stride]
    int stride;

    void clear(int columns) const {
        for (int c = 0; c < round_up(columns, GROUP); ++c) most[c] = -INFINITY, sums[c] = 0;
        std::memset(out, 0, size_t(round_up(columns, 8)) * size_t(stride) * sizeof(float));
    }
};

// The partials of a row's chunks, one after the other in memory.
struct Partials {
    float *base;
    int columns, rank;
    int stride() const { return int(round_up(rank, 32)); }
    static int64_t floats(int columns, int rank) {
        return round_up(columns, 8) * round_up(rank, 32) + 2 * round_up(columns, GROUP);
    }
    Partial part(int chunk) const {
        float *out = base + chunk * floats(columns, rank);
        float *most = out + round_up(columns, 8) * stride();
        return {most, most + round_up(columns, GROUP), out, stride()};
    }
};

} // namespace arc::ARC_LEVEL
