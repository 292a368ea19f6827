#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "matrix.h"

namespace arc {
namespace {

float as_float(const float *value) { return *value; }
float as_float(const uint16_t *value) {
    uint32_t bits = uint32_t(*value) << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}

template <typename In> struct Source {
    const In *weight;
    int64_t row, column;
    const In *at(int n, int k) const { return weight + n * row + k * column; }
};

// Weights [first, last) of a column as whole numbers up to `most`, symmetrically: the largest of them becomes `most`.
template <typename In, class Put>
void quantise(const Source<In> &from, int column, int first, int last, int most, const Matrix &matrix, Put &&put) {
    float largest = 0;
    for (int i = first; i < last; ++i) largest = std::max(largest, std::fabs(as_float(from.at(column, i))));
    float scale = largest > 0 ? largest / float(most) : 1;
    for (int i = first; i < last; ++i) put(i, int(std::lrint(as_float(from.at(column, i)) / scale)));
    const_cast<float *>(matrix.scales)[int64_t(first / INT4_GROUP) * padded_columns(matrix.n) + column] = scale;
}

template <typename In> void pack_panel(const Source<In> &from, const Matrix &matrix, Panel panel) {
    int k = matrix.k;
    char *data = static_cast<char *>(const_cast<void *>(matrix.data)) + panel_offset(matrix, panel);
    std::memset(data, 0, size_t(stored_bytes(int64_t(panel.width) * padded_depth(k, matrix.format), matrix.format)));
    for (int j = 0; j < panel.used; ++j) {
        int column = panel.column + j;
        switch (matrix.format) {
        case FORMAT_BF16: {
            auto *to = reinterpret_cast<uint16_t *>(data);
            for (int i = 0; i < k; ++i) std::memcpy(to + (i / 2 * panel.width + j) * 2 + i % 2, from.at(column, i), 2);
            break;
        }
        case FORMAT_F32: {
            auto *to = reinterpret_cast<float *>(data);
            for (int i = 0; i < k; ++i) to[i * panel.width + j] = as_float(from.at(column, i));
            break;
        }
        case FORMAT_INT8: quantise(from, column, 0, k, 127, matrix, [&](int i, int value) {
                reinterpret_cast<int8_t *>(data)[i * panel.width + j] = int8_t(value);
            });
            break;
        default:
            for (int first = 0; first < k; first += INT4_GROUP) {
                int last = std::min(k, first + INT4_GROUP);
                quantise(from, column, first, last, 7, matrix, [&](int i, int value) {
                    auto *byte = reinterpret_cast<uint8_t *>(data) + i / 2 * panel.width + j;
                    *byte = uint8_t(*byte | (value & 15) << (i % 2 * 4));
                });
            }
        }
    }
}

template <typename In> void pack_all(Worker &worker, const PackCall &call) {
    Source<In> from{static_cast<const In *>(call.weight), call.row_stride, call.column_stride};
    worker.each(panels(call.matrix.n), [&](int item) { pack_panel(from, call.matrix, panel(call.matrix.n, item)); });
}

} // namespace

void pack(Worker &worker, const PackCall &call, Type type) {
    if (type == FLOAT32) pack_all<float>(worker, call);
    else pack_all<uint16_t>(worker, call);
}

} // namespace arc
