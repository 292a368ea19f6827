// What is done value by value or row by row: norms, rotary turns, gated products.

#pragma once

namespace arc::ARC_LEVEL {

// x / rms(x) * weight.
template <typename In, typename Out>
inline void rms_norm_row(const In *x, const float *weight, int n, float eps, Out *out) {
    Floats squares{};
    lanes(n, [&](int, auto get, auto) {
        Floats value = get(x);
        squares += value * value;
    });
    float scale = 1.0f / std::sqrt(sum(squares) / float(n) + eps);
    lanes(n, [&](int, auto get, auto put) { put(out, get(x) * scale * get(weight)); });
}

// The pairs (0, 1), (2, 3), ... of x turned by (cos, sin) of `turns`, both [n].
template <typename T> inline void rope_row(const T *x, const float *turns, int n, T *out) {
    for (int i = 0; i < n; i += 2) {
        float a = widen(x[i]), b = widen(x[i + 1]), cosine = turns[i], sine = turns[i + 1];
        narrow(out + i, a * cosine - b * sine);
        narrow(out + i + 1, b * cosine + a * sine);
    }
}

// The latent normalised and the rope part turned, from a down-projection [rank + rope] to where it is cached.
template <typename T>
inline void latent_row(const T *kv, const float *weight, const float *turns, int rank, int rope, float eps, T *out) {
    rms_norm_row(kv, weight, rank, eps, out);
    rope_row(kv + rank, turns, rope, out + rank);
}

} // namespace arc::ARC_LEVEL
