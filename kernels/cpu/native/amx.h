// Products of bf16 by AMX: tiles of 16 rows of 64 bytes, and one instruction that multiplies two of them (Intel's Software
// Developer's Manual, volume 1, chapter 18).
//
// A tile of A is 16 rows of 32 values of k, one of B 16 pairs of k of 16 columns, which is how panels hold bf16, and one of C
// 16 x 16 sums in fp32. All eight tiles have this shape at all times: another one would clear them. So fewer rows are filled
// up with zeros, and so is what is left of k.

#pragma once

#if ARC_AMX

namespace arc::ARC_LEVEL {

constexpr int TILE = 16;           // rows of a tile, and columns of B and C
constexpr int TILE_DEPTH = 32;     // values of k
constexpr int AMX_ROWS = 2 * TILE; // that are multiplied together

// Tiles are loaded behind the compiler's back: after this, what was stored in `object`, and in all that others know of, is in
// memory.
inline void settle(const void *object) { asm volatile("" : : "r"(object) : "memory"); }

// The tiles of a thread are in shape while one is there. Afterwards they are released, so that the system need not save them.
class TileSession {
public:
    TileSession() {
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE};
        } shape;
        settle(&shape);
        _tile_loadconfig(&shape);
    }
    ~TileSession() { _tile_release(); }
    TileSession(const TileSession &) = delete;
};

// Rows of A as tiles are loaded from them.
struct RowTile {
    const bf16 *base;
    int64_t stride; // bytes
};

// Up to TILE rows of k values. They are copied unless they lie evenly and fill the tile; a row alone stands for all 16.
inline RowTile row_tile(const bf16 *const *a, int rows, int k, Scratch &scratch) {
    if (k % TILE_DEPTH == 0) {
        int64_t stride = rows > 1 ? a[1] - a[0] : 0;
        bool even = rows == 1 || rows == TILE;
        for (int r = 1; even && r < rows; ++r) even = a[r] - a[r - 1] == stride;
        if (even) return {a[0], stride * 2};
    }
    int deep = int(round_up(k, TILE_DEPTH));
    bf16 *copy = scratch.take<bf16>(size_t(TILE) * deep);
    for (int r = 0; r < TILE; ++r) {
        bf16 *to = copy + r * deep;
        int used = r < rows ? k : 0;
        if (used > 0) std::memcpy(static_cast<void *>(to), a[r], size_t(used) * 2);
        std::memset(static_cast<void *>(to + used), 0, size_t(deep - used) * 2);
    }
    return {copy, deep * 2};
}

// c [R * TILE][V * TILE] (+)= a B, of V = 1, 2 or, for R = 1, 4 tiles of columns. B's pairs are `stride` columns apart. soon:
// as B, and asked for on the way unless it is B.
template <int R, int V, bool ADD>
inline void amx_block(const RowTile *a, int k, const uint32_t *b, int64_t stride, float *c, int c_stride,
                      const uint32_t *soon) {
    int64_t c_bytes = int64_t(c_stride) * 4, b_bytes = stride * 4;
    auto sums = [&](int r, int v) { return c + int64_t(r) * TILE * c_stride + v * TILE; };
    if constexpr (ADD) {
        _tile_loadd(0, sums(0, 0), c_bytes);
        if constexpr (V > 1) _tile_loadd(1, sums(0, 1), c_bytes);
        if constexpr (R == 2) {
            _tile_loadd(2, sums(1, 0), c_bytes);
            if constexpr (V > 1) _tile_loadd(3, sums(1, 1), c_bytes);
        } else if constexpr (V == 4) {
            _tile_loadd(2, sums(0, 2), c_bytes);
            _tile_loadd(3, sums(0, 3), c_bytes);
        }
    } else {
        _tile_zero(0);
        if constexpr (V > 1) _tile_zero(1);
        if constexpr (R == 2 || V == 4) _tile_zero(2);
        if constexpr ((R == 2 && V > 1) || V == 4) _tile_zero(3);
    }
    bool ahead = soon != b;
    auto step = [&](int i, const uint32_t *tiles, int64_t bytes) {
        // A part of what comes next with each tile, in the order of memory: so the processor's own prefetching takes it up.
        auto at = [&](int v) {
            for (int p = v * TILE / V; ahead && p < (v + 1) * TILE / V; ++p) {
                for (int line = 0; line < V; ++line) prefetch(soon + p * stride + line * TILE);
            }
            return tiles + v * TILE;
        };
        _tile_loadd(4, a[0].base + i, a[0].stride);
        _tile_loadd(6, at(0), bytes);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (R == 2) {
            _tile_loadd(5, a[1].base + i, a[1].stride);
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (V > 1) {
                _tile_loadd(7, at(1), bytes);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        } else {
            if constexpr (V > 1) {
                _tile_loadd(7, at(1), bytes);
                _tile_dpbf16ps(1, 4, 7);
            }
            if constexpr (V == 4) {
                _tile_loadd(6, at(2), bytes);
                _tile_dpbf16ps(2, 4, 6);
                _tile_loadd(7, at(3), bytes);
                _tile_dpbf16ps(3, 4, 7);
            }
        }
    };
    int i = 0;
    for (; i + TILE_DEPTH <= k; i += TILE_DEPTH, b += TILE * stride, soon += TILE * stride) {
        step(i, b, b_bytes);
    }
    if (i < k) { // B has no rows behind its last pair
        alignas(64) uint32_t rest[TILE][V * TILE] = {};
        for (int p = 0; p < (k - i + 1) / 2; ++p) std::memcpy(rest[p], b + p * stride, sizeof rest[p]);
        settle(rest);
        ahead = false;
        step(i, rest[0], sizeof rest[0]);
    }
    _tile_stored(0, sums(0, 0), c_bytes);
    if constexpr (V > 1) _tile_stored(1, sums(0, 1), c_bytes);
    if constexpr (R == 2) {
        _tile_stored(2, sums(1, 0), c_bytes);
        if constexpr (V > 1) _tile_stored(3, sums(1, 1), c_bytes);
    } else if constexpr (V == 4) {
        _tile_stored(2, sums(0, 2), c_bytes);
        _tile_stored(3, sums(0, 3), c_bytes);
    }
}

template <int R, int V, bool ADD>
inline void amx_columns(const RowTile *a, int k, const uint32_t *b, int64_t stride, float *c, int c_stride, int width,
                        const uint32_t *soon) {
    int column = 0;
    for (; column + V * TILE <= width; column += V * TILE) {
        amx_block<R, V, ADD>(a, k, b + column, stride, c + column, c_stride, soon + column);
    }
    for (; column < width; column += TILE) {
        amx_block<R, 1, ADD>(a, k, b + column, stride, c + column, c_stride, soon + column);
    }
}

// As product.h's `times`, for up to AMX_ROWS rows. c has room for whole tiles, and rows past `rows` are overwritten.
template <bool ADD>
inline void amx_times(const bf16 *const *a, int rows, int k, const uint32_t *b, int64_t stride, float *c, int c_stride,
                      int width, const uint32_t *soon, Scratch &scratch) {
    Scratch::Hold hold(scratch);
    RowTile tiles[2];
    tiles[0] = row_tile(a, min(rows, TILE), k, scratch);
    if (rows > TILE) tiles[1] = row_tile(a + TILE, rows - TILE, k, scratch);
    settle(tiles);
    if (rows > TILE) amx_columns<2, 2, ADD>(tiles, k, b, stride, c, c_stride, width, soon);
    else amx_columns<1, 4, ADD>(tiles, k, b, stride, c, c_stride, width, soon);
}

} // namespace arc::ARC_LEVEL

#else

namespace arc::ARC_LEVEL {

struct TileSession {};

} // namespace arc::ARC_LEVEL

#endif
