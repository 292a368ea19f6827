// Vectors of the level's own width, in the compilers' portable vector types: one source for every instruction set.

#pragma once

namespace arc::ARC_LEVEL {

constexpr int LANES = ARC_LANES;

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef int16_t Shorts __attribute__((vector_size(LANES * 2)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Asks for a line of memory that is read soon, without waiting: into the second cache, since the first one is full of what is
// read now.
inline void prefetch(const void *from) { __builtin_prefetch(from, 0, 2); }

inline Floats splat(float value) { return value - Floats{}; }

inline float widen(float value) { return value; }
inline float widen(bf16 value) {
    uint32_t bits = uint32_t(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}

inline Floats load(const float *from) {
    Floats value;
    std::memcpy(&value, from, sizeof value);
    return value;
}
inline Floats load(const bf16 *from) {
    Halves half;
    std::memcpy(&half, from, sizeof half);
    return (Floats)(__builtin_convertvector(half, Words) << 16);
}
// In two steps: GCC 12 takes a conversion to four times the width apart into single values.
inline Ints widen_bytes(const int8_t *from) {
    Bytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, Shorts), Ints);
}
inline Floats load(const int8_t *from) { return __builtin_convertvector(widen_bytes(from), Floats); }

// Rounds to the nearest, ties to even, as torch does; a NaN stays one.
inline Words round_to_bf16(Floats value) {
    Words bits = (Words)value;
    Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    Words nan = (Words)(value != value);
    return (rounded & ~nan) | (0x7fc0 & nan);
}

inline void store(float *to, Floats value) { std::memcpy(to, &value, sizeof value); }
inline void store(bf16 *to, Floats value) {
#if ARC_BF16_ROUND
    __m256bh half = _mm512_cvtneps_pbh((__m512)value);
#else
    Halves half = __builtin_convertvector(round_to_bf16(value), Halves);
#endif
    std::memcpy(to, &half, sizeof half);
}

inline void narrow(float *to, float value) { *to = value; }
inline void narrow(bf16 *to, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    to->bits = value != value ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The first `count` < LANES values, and zeros.
template <typename T> inline Floats load_some(const T *from, int count) {
    T part[LANES] = {};
    std::memcpy(part, from, size_t(count) * sizeof(T));
    return load(part);
}
template <typename T> inline void store_some(T *to, Floats value, int count) {
    T part[LANES];
    store(part, value);
    std::memcpy(to, part, size_t(count) * sizeof(T));
}

// body(offset, load, store) over [0, n): `load(p)` gives the lanes at p + offset, `store(p, lanes)` writes them; the last
// ones may be fewer, and read as zeros.
template <typename Body> inline void lanes(int n, Body &&body) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        body(
            i, [i](auto *from) { return load(from + i); }, [i](auto *to, Floats value) { store(to + i, value); });
    }
    if (int rest = n - i) {
        body(
            i, [i, rest](auto *from) { return load_some(from + i, rest); },
            [i, rest](auto *to, Floats value) { store_some(to + i, value, rest); });
    }
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// Lanes `index`... of a and b, which count on from one to the other.
template <int... INDEX> inline Floats pick(Floats a, Floats b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, INDEX...);
#else
    return __builtin_shuffle(a, b, Ints{INDEX...});
#endif
}

// The lanes turned by N places: lane i is value[i + N].
template <int N, int... I> inline Floats turned(Floats value, std::integer_sequence<int, I...>) {
    return pick<((I + N) % LANES)...>(value, value);
}
template <int N> inline Floats turned(Floats value) { return turned<N>(value, std::make_integer_sequence<int, LANES>()); }

// What `fold` gives of all lanes that are TO apart, in each of them; lanes FROM apart are folded already.
template <int FROM = LANES, int TO = 1, class Fold> inline Floats folded(Floats value, Fold &&fold) {
    if constexpr (FROM == TO) return value;
    else return folded<FROM / 2, TO>(fold(value, turned<FROM / 2>(value)), fold);
}
inline float sum(Floats value) {
    return folded(value, [](Floats a, Floats b) { return a + b; })[0];
}
inline float largest(Floats value) { return folded(value, larger)[0]; }

// e^x for x <= 88, within 2 ulp; far below zero it gives 0, and for NaN NaN. Cody and Waite's reduction, and a polynomial of
// degree 6 with Taylor's coefficients: on half an interval of log 2 its error is below that of rounding.
inline Floats exponential(Floats x) {
    const Floats rounder = splat(12582912.0f); // 1.5 * 2^23: adding it rounds to a whole number
    Floats whole = (x * 1.44269504088896341f + rounder) - rounder;
    Floats r = x - whole * 0.693145751953125f;
    r = r - whole * 1.42860682030941723e-6f;
    Floats p = splat(1.0f / 720);
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    Ints power = (__builtin_convertvector(whole, Ints) + 127) << 23;
    Floats value = p * (Floats)power;
    return x < -87.0f ? Floats{} : value;
}

// x / (1 + e^-x). Below -80 the exponential would overflow, and the value is nearer to 0 than any bf16.
inline Floats silu(Floats x) {
    Floats held = x < -80.0f ? splat(-80.0f) : x;
    return x / (1.0f + exponential(-held));
}

} // namespace arc::ARC_LEVEL
