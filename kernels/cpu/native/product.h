// Products of a few rows of activations with one panel of a weight: the inner loops of everything that multiplies.
//
// A tile of up to TILE_ROWS rows and one panel's columns is summed up in registers over all of k, in fp32. What is done
// with the sums is the caller's: it gets them in a small buffer, which costs little beside the loop over k.
//
// Memory is slower than the products of a few rows, and a panel's first tile waits for it, while later ones find it in the
// cache. So the last tile asks for the panel that comes next (`soon`) as it goes along.

#pragma once

#include "amx.h"
#include "matrix.h"

namespace arc::ARC_LEVEL {

constexpr int FEW_ROWS = 6;
constexpr int VECTORS = ARC_VECTORS; // of one row's columns in registers at once; rows * VECTORS sums must fit

// Rows of a type that are multiplied together; the buffer of their sums has room for as many.
#if ARC_AMX
template <typename T> constexpr int TILE_ROWS = sizeof(T) == 2 ? AMX_ROWS : FEW_ROWS;
#else
template <typename T> constexpr int TILE_ROWS = FEW_ROWS;
#endif

// Tiles of nearly equal height, 8 rows are 4 and 4, not 6 and 2; or whole ones where a whole one costs no more.
template <typename T> struct Tiles {
    explicit Tiles(int rows) : rows(rows), count((rows + TILE_ROWS<T> - 1) / TILE_ROWS<T>) {}
    int start(int tile) const {
        return TILE_ROWS<T> > FEW_ROWS ? min(rows, tile * TILE_ROWS<T>) : int(int64_t(rows) * tile / count);
    }
    int rows, count;
};

// Where B's values come from, LANES columns at a time. STEP: values of k that one read gives.
struct ReadFloats {
    static constexpr int STEP = 1;
    typedef float Value;
    static Floats read(const float *from, int) { return load(from); }
};

struct ReadPairs {
    static constexpr int STEP = 2;
    typedef uint32_t Value;
    static Floats read(const uint32_t *from, int s) {
        Words both;
        std::memcpy(&both, from, sizeof both);
        return (Floats)(s == 0 ? both << 16 : both & 0xffff0000u);
    }
};

// sum + x * y. With AVX2's 16 registers GCC 12 moves the sums of a block about, and through memory: there each stays in place.
inline Floats plus_product(Floats sum, Floats x, Floats y) {
#if ARC_LANES == 8
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(x), "x"(y));
    return sum;
#else
    return sum + x * y;
#endif
}

// c[r][0 .. V * LANES) (+)= sum over k of a[r][k] * B[k][...]. B's rows (of STEP values of k) are `stride` values apart.
// a has k values a row, or one zero more where STEP asks for it. soon: laid out like b.
template <class B, int R, int V, bool ADD>
inline void block(const float *const *a, int k, const typename B::Value *b, int64_t stride, float *c, int c_stride,
                  const typename B::Value *soon) {
    Floats sums[R][V];
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) sums[r][v] = ADD ? load(c + r * c_stride + v * LANES) : Floats{};
    }
    const float *rows[R];
    for (int r = 0; r < R; ++r) rows[r] = a[r];
    for (int i = 0; i < k; i += B::STEP, b += stride, soon += stride) {
        for (int v = 0; v < V; ++v) prefetch(soon + v * LANES);
        for (int s = 0; s < B::STEP; ++s) {
            Floats values[V];
            for (int v = 0; v < V; ++v) values[v] = B::read(b + v * LANES, s);
            for (int r = 0; r < R; ++r) {
                Floats x = splat(rows[r][i + s]);
                for (int v = 0; v < V; ++v) sums[r][v] = plus_product(sums[r][v], x, values[v]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) store(c + r * c_stride + v * LANES, sums[r][v]);
    }
}

template <class B, int R, bool ADD>
inline void column_blocks(const float *const *a, int k, const typename B::Value *b, int64_t stride, float *c, int c_stride,
                          int width, const typename B::Value *soon) {
    int column = 0;
    for (; column + VECTORS * LANES <= width; column += VECTORS * LANES) {
        block<B, R, VECTORS, ADD>(a, k, b + column, stride, c + column, c_stride, soon + column);
    }
    for (; column < width; column += LANES) {
        block<B, R, 1, ADD>(a, k, b + column, stride, c + column, c_stride, soon + column);
    }
}

#if ARC_BF16_DOT

// The same on pairs, by the processor's own dot product: fp32 sums of bf16 products, two at a time.
template <int R, int V, bool ADD>
inline void pair_block(const bf16 *const *a, int k, const uint32_t *b, int64_t stride, float *c, int c_stride,
                       const uint32_t *soon) {
    __m512 sums[R][V];
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) sums[r][v] = ADD ? _mm512_loadu_ps(c + r * c_stride + v * 16) : _mm512_setzero_ps();
    }
    const bf16 *rows[R];
    for (int r = 0; r < R; ++r) rows[r] = a[r];
    auto step = [&](auto &&pair) {
        for (int v = 0; v < V; ++v) prefetch(soon + v * 16);
        __m512bh values[V];
        for (int v = 0; v < V; ++v) values[v] = (__m512bh)_mm512_loadu_si512(b + v * 16);
        for (int r = 0; r < R; ++r) {
            __m512bh x = (__m512bh)_mm512_set1_epi32(pair(rows[r]));
            for (int v = 0; v < V; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x, values[v]);
        }
        b += stride;
        soon += stride;
    };
    int i = 0;
    for (; i + 2 <= k; i += 2) {
        step([i](const bf16 *row) {
            int32_t two;
            std::memcpy(&two, row + i, 4);
            return two;
        });
    }
    if (i < k) step([i](const bf16 *row) { return int32_t(row[i].bits); });
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) _mm512_storeu_ps(c + r * c_stride + v * 16, sums[r][v]);
    }
}

template <int R, bool ADD>
inline void pair_columns(const bf16 *const *a, int k, const uint32_t *b, int64_t stride, float *c, int c_stride, int width,
                         const uint32_t *soon) {
    int column = 0;
    for (; column + 64 <= width; column += 64) {
        pair_block<R, 4, ADD>(a, k, b + column, stride, c + column, c_stride, soon + column);
    }
    for (; column < width; column += 16) {
        pair_block<R, 1, ADD>(a, k, b + column, stride, c + column, c_stride, soon + column);
    }
}

#endif

// Calls body with the number of rows as a constant, which keeps the sums in registers.
template <class Body> inline void with_rows(int rows, Body &&body) {
    switch (rows) {
    case 1: return body(std::integral_constant<int, 1>());
    case 2: return body(std::integral_constant<int, 2>());
    case 3: return body(std::integral_constant<int, 3>());
    case 4: return body(std::integral_constant<int, 4>());
    case 5: return body(std::integral_constant<int, 5>());
    default: return body(std::integral_constant<int, 6>());
    }
}

// A matrix in the model's own type as `times` reads it: Value holds STEP values of k of one column.
template <typename T> struct Stored;
template <> struct Stored<float> {
    typedef float Value;
    static constexpr int STEP = 1;
};
template <> struct Stored<bf16> {
    typedef uint32_t Value;
    static constexpr int STEP = 2;
};

// Rows as floats, with a zero behind the last value.
template <typename T> inline void widen_rows(const T *const *a, int rows, int k, float *to, const float **wide) {
    int stride = int(round_up(k + 1, LANES));
    for (int r = 0; r < rows; ++r) {
        float *row = to + r * stride;
        lanes(k, [&](int, auto get, auto put) { put(row, get(a[r])); });
        row[k] = 0;
        wide[r] = row;
    }
}
inline int64_t widened_size(int k) { return FEW_ROWS * round_up(k + 1, LANES); }

// c[rows][width] (+)= a B with B in the model's own type, laid out as a panel is, `stride` columns a step of k. rows <=
// TILE_ROWS<T>, and c has room for so many; width a multiple of NARROW. soon: what is read after B, or B.
template <bool ADD>
inline void times(const float *const *a, int rows, int k, const float *b, int64_t stride, float *c, int c_stride, int width,
                  const float *soon, Scratch &) {
    with_rows(rows, [&](auto r) { column_blocks<ReadFloats, r, ADD>(a, k, b, stride, c, c_stride, width, soon); });
}
template <bool ADD>
inline void times(const bf16 *const *a, int rows, int k, const uint32_t *b, int64_t stride, float *c, int c_stride,
                  int width, const uint32_t *soon, Scratch &scratch) {
#if ARC_AMX
    amx_times<ADD>(a, rows, k, b, stride, c, c_stride, width, soon, scratch);
#elif ARC_BF16_DOT
    (void)scratch;
    with_rows(rows, [&](auto r) { pair_columns<r, ADD>(a, k, b, stride, c, c_stride, width, soon); });
#else
    Scratch::Hold hold(scratch);
    const float *wide[FEW_ROWS];
    widen_rows(a, rows, k, scratch.take<float>(size_t(widened_size(k))), wide);
    with_rows(rows, [&](auto r) { column_blocks<ReadPairs, r, ADD>(wide, k, b, stride, c, c_stride, width, soon); });
#endif
}

inline const void *panel_data(const Matrix &matrix, int number) {
    return static_cast<const char *>(matrix.data) + panel_offset(matrix, panel(matrix.n, number));
}

// c[rows][WIDE] = a times one panel of a weight in bf16 or fp32, at `data`.
template <typename T>
inline void times_panel(const T *const *a, int rows, const Matrix &matrix, Panel panel, const void *data, const void *soon,
                        float *c, Scratch &scratch) {
    int k = matrix.k;
    if constexpr (sizeof(T) == 2) {
        if (matrix.format == FORMAT_BF16) {
            auto *pairs = static_cast<const uint32_t *>(data);
            return times<false>(a, rows, k, pairs, panel.width, c, WIDE, panel.width, static_cast<const uint32_t *>(soon),
                                scratch);
        }
    }
    Scratch::Hold hold(scratch);
    auto *values = static_cast<const float *>(data);
    float *room = sizeof(T) == 4 ? nullptr : scratch.take<float>(size_t(widened_size(k)));
    for (int start = 0; start < rows; start += FEW_ROWS) {
        int count = min(FEW_ROWS, rows - start);
        const float *wide[FEW_ROWS];
        if constexpr (sizeof(T) == 4) {
            for (int r = 0; r < count; ++r) wide[r] = a[start + r];
        } else {
            widen_rows(a + start, count, k, room, wide);
        }
        const float *next = start + count == rows ? static_cast<const float *>(soon) : values;
        with_rows(count, [&](auto r) {
            column_blocks<ReadFloats, r, false>(wide, k, values, panel.width, c + start * WIDE, WIDE, panel.width, next);
        });
    }
}

// Whole numbers of int8 and int4 weights, `depth` values of k from `first` on, as a panel of the model's own type.
inline void whole_numbers(const int8_t *from, int k, int stride, Floats *two) {
    two[0] = load(from + k * stride);
    two[1] = load(from + (k + 1) * stride);
}
inline void nibbles(const int8_t *from, int k, int stride, Floats *two) {
    Ints both = widen_bytes(from + k / 2 * stride);
    two[0] = __builtin_convertvector((both << 28) >> 28, Floats);
    two[1] = __builtin_convertvector(both >> 4, Floats);
}
inline void put_pair(const Floats *two, float *to, int stride, int k) {
    store(to + k * stride, two[0]);
    store(to + (k + 1) * stride, two[1]);
}
inline void put_pair(const Floats *two, uint32_t *to, int stride, int k) {
    Words both = ((Words)two[0] >> 16) | ((Words)two[1] & 0xffff0000u); // exact: they have 7 bits at most
    std::memcpy(to + k / 2 * stride, &both, sizeof both);
}
template <typename Value>
inline void unpack_numbers(const void *data, const void *soon, int format, int first, int depth, int width, Value *to) {
    int64_t start = int64_t(first) * width / (format == FORMAT_INT4 ? 2 : 1);
    auto *from = static_cast<const int8_t *>(data) + start, *next = static_cast<const int8_t *>(soon) + start;
    for (int k = 0; k < depth; k += 2) {
        for (int i = 0; i < width; i += LANES) {
            prefetch(next + (format == FORMAT_INT4 ? k / 2 : k) * width + i);
            Floats two[2];
            if (format == FORMAT_INT4) nibbles(from + i, k, width, two);
            else whole_numbers(from + i, k, width, two);
            put_pair(two, to + i, width, k);
        }
    }
}

constexpr int INT8_DEPTH = 128; // values of k unpacked at once: a panel of them fits the first cache

// c[rows][WIDE] = a times one panel of whole numbers, times their scales: one a column for int8, one a column and
// INT4_GROUP values of k for int4. a [count] rows; the numbers are unpacked once for all of them.
template <typename T>
inline void times_numbers(const T *const *a, int count, const Matrix &matrix, Panel panel, const void *data,
                          const void *soon, float *c, Scratch &scratch) {
    bool groups = matrix.format == FORMAT_INT4;
    int step = groups ? INT4_GROUP : INT8_DEPTH, width = panel.width;
    auto *numbers = scratch.take<typename Stored<T>::Value>(size_t(step) * WIDE);
    alignas(64) float part[TILE_ROWS<T> * WIDE];
    for (int first = 0; first < matrix.k; first += step) {
        int depth = min(step, matrix.k - first);
        unpack_numbers(data, soon, matrix.format, first, depth, width, numbers);
        const float *scales =
            matrix.scales + (groups ? int64_t(first / INT4_GROUP) * padded_columns(matrix.n) : 0) + panel.column;
        Tiles<T> tiles(count);
        for (int tile = 0; tile < tiles.count; ++tile) {
            int start = tiles.start(tile), rows = tiles.start(tile + 1) - start;
            const T *at[TILE_ROWS<T>];
            for (int r = 0; r < rows; ++r) at[r] = a[start + r] + first;
            times<false>(at, rows, depth, numbers, width, part, WIDE, width, numbers, scratch);
            for (int r = 0; r < rows; ++r) {
                float *to = c + (start + r) * WIDE;
                for (int i = 0; i < width; i += LANES) {
                    Floats sum = load(part + r * WIDE + i) * load(scales + i);
                    store(to + i, first == 0 ? sum : load(to + i) + sum);
                }
            }
        }
    }
}

// Rows of x times one panel: sums(row, c) gets each row's `panel.used` sums, bias included. row_of(i) gives row i of `count`.
// soon: the data of a panel of the same shape that is read next; null: not known.
template <typename T, class RowOf, class Sums>
inline void panel_product(int count, const Matrix &matrix, int number, const void *soon, Scratch &scratch, RowOf &&row_of,
                          Sums &&sums) {
    Panel columns = panel(matrix.n, number);
    const void *data = panel_data(matrix, number);
    if (soon == nullptr) soon = data;
    auto give = [&](int row, float *c) {
        if (matrix.bias != nullptr) {
            lanes(columns.used, [&](int, auto get, auto put) { put(c, get(c) + get(matrix.bias + columns.column)); });
        }
        sums(row, c);
    };
    Scratch::Hold hold(scratch);
    if (matrix.format == FORMAT_INT8 || matrix.format == FORMAT_INT4) {
        const T **a = scratch.take<const T *>(size_t(count));
        float *c = scratch.take<float>(size_t(count) * WIDE);
        for (int i = 0; i < count; ++i) a[i] = row_of(i);
        times_numbers(a, count, matrix, columns, data, soon, c, scratch);
        for (int i = 0; i < count; ++i) give(i, c + i * WIDE);
        return;
    }
    alignas(64) float c[TILE_ROWS<T> * WIDE];
    Tiles<T> tiles(count);
    for (int tile = 0; tile < tiles.count; ++tile) {
        int start = tiles.start(tile), rows = tiles.start(tile + 1) - start;
        const T *a[TILE_ROWS<T>];
        for (int r = 0; r < rows; ++r) a[r] = row_of(start + r);
        times_panel(a, rows, matrix, columns, data, tile + 1 == tiles.count ? soon : data, c, scratch);
        for (int r = 0; r < rows; ++r) give(start + r, c + r * WIDE);
    }
}

} // namespace arc::ARC_LEVEL
