// AVX-512 with the bf16 dot product and AMX: Intel Sapphire Rapids and later.

#include "prelude.h"

#if defined(__x86_64__)

#define ARC_LEVEL amx
#define ARC_LANES 16
#define ARC_VECTORS 4
#define ARC_BF16_DOT 0
#define ARC_BF16_ROUND 1
#define ARC_AMX 1

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16")
#endif

#include "vector.h"

#include "jobs.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace arc {

const Kernels *amx_kernels() {
    static const Kernels kernels = amx::all_kernels();
    return &kernels;
}

} // namespace arc

#else

const arc::Kernels *arc::amx_kernels() { return nullptr; }

#endif
