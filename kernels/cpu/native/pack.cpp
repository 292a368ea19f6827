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
        case FORMAT_INT8: {
            // Symmetric, one scale a column: the largest weight becomes 127.
            float most = 0;
            for (int i = 0; i < k; ++i) most = std::max(most, std::fabs(as_float(from.at(column, i))));
            float scale = most > 0 ? most / 127 : 1;
            auto *to = reinterpret_cast<int8_t *>(data);
            for (int i = 0; i < k; ++i) {
                to[i * panel.width + j] = int8_t(std::lrint(as_float(from.at(column, i)) / scale));
            }
            const_cast<float *>(matrix.scales)[column] = scale;
            break;
        }
        default: break;
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
