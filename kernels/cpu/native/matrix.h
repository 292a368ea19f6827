// The layout of weights: panels of 64 columns, and of 16 for what is left.
//
// A column of y = x W^T is a row of the weight [n, k]. A panel holds its columns' weights for k = 0, then for k = 1, ..., so
// that a product reads it from start to end, once. bf16 is stored in pairs (k, k + 1) of one column, which is what the
// processor's bf16 dot product multiplies: [k / 2][columns][2]. fp32 and int8 are [k][columns], int4 [k / 2][columns] with the
// even k in the lower half of each byte. Columns past n, and what is past k, are zeros.
//
// The layout is the same for all instruction sets.

#pragma once

#include "api.h"

namespace arc {

constexpr int WIDE = 64, NARROW = 16;
constexpr int INT4_GROUP = 32; // weights of a column that share a scale

struct Panel {
    int column; // first
    int width;  // WIDE or NARROW
    int used;   // columns that exist
};

// Wide panels while more than 32 columns are left: a half-empty wide one is still faster than narrow ones.
inline int wide_panels(int n) { return n / WIDE + (n % WIDE > WIDE / 2 ? 1 : 0); }
inline int panels(int n) {
    int rest = n - wide_panels(n) * WIDE;
    return wide_panels(n) + (rest > 0 ? (rest + NARROW - 1) / NARROW : 0);
}
inline int padded_columns(int n) {
    int wide = wide_panels(n);
    return wide * WIDE + (panels(n) - wide) * NARROW;
}
inline Panel panel(int n, int number) {
    int wide = wide_panels(n);
    int column = number < wide ? number * WIDE : wide * WIDE + (number - wide) * NARROW;
    int width = number < wide ? WIDE : NARROW;
    return {column, width, n - column < width ? n - column : width};
}

// k as stored.
inline int padded_depth(int k, int format) {
    return format == FORMAT_F32 ? k : (k + 1) / 2 * 2;
}

// Bytes of `values` values, which is even for int4.
inline int64_t stored_bytes(int64_t values, int format) {
    switch (format) {
    case FORMAT_BF16: return values * 2;
    case FORMAT_F32: return values * 4;
    case FORMAT_INT8: return values;
    default: return values / 2;
    }
}

inline int64_t matrix_bytes(int n, int k, int format) {
    return stored_bytes(int64_t(padded_columns(n)) * padded_depth(k, format), format);
}

// Scales of an int8 or int4 weight: [groups][padded columns].
inline int64_t matrix_scales(int n, int k, int format) {
    int groups = format == FORMAT_INT4 ? (k + INT4_GROUP - 1) / INT4_GROUP : format == FORMAT_INT8 ? 1 : 0;
    return int64_t(groups) * padded_columns(n);
}

inline int64_t panel_offset(const Matrix &matrix, Panel panel) {
    return stored_bytes(int64_t(panel.column) * padded_depth(matrix.k, matrix.format), matrix.format);
}

} // namespace arc
