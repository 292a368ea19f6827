// The library's functions: which level runs here, how much room a call needs, and the call itself.

#include "api.h"

#include "kernels.h"
#include "matrix.h"
#include "pack.h"
#include "pool.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define ARC_API __attribute__((visibility("default")))

namespace arc {
namespace {

const Kernels *kernels_of(int level) {
    switch (level) {
    case 0: return amx_kernels();
    case 1: return avx512_bf16_kernels();
    case 2: return avx512_kernels();
    case 3: return avx2_kernels();
    default: return plain_kernels();
    }
}

// Whether the processor has AMX's tiles and products of bf16 (leaf 7 of cpuid), and the system lets this process use them:
// Linux keeps no room for them until it is asked to (ARCH_REQ_XCOMP_PERM, its Documentation/arch/x86/xstate.rst).
bool tiles_permitted() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr unsigned BF16 = 1u << 22, TILES = 1u << 24;
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;
    static const bool permitted = [] {
        unsigned a, b, c, d;
        bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & BF16) && (d & TILES);
        return has && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    }();
    return permitted;
#else
    return false;
#endif
}

bool runs(int level) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    switch (level) {
    case 0: return avx512 && __builtin_cpu_supports("avx512bf16") && tiles_permitted();
    case 1: return avx512 && __builtin_cpu_supports("avx512bf16");
    case 2: return avx512;
    case 3: return avx2;
    default: return level == 4;
    }
#else
    return level == 4;
#endif
}

// The fastest level that runs. Intel's dot product of bf16 pairs takes longer than what it replaces: on Emerald Rapids
// 0.69 ns for 32 products, where a multiply-add of 16 takes 0.15 (docs/performance.md); on AMD it is the faster one.
int fastest() {
#if defined(__x86_64__)
    if (!runs(0) && runs(1) && __builtin_cpu_is("intel")) return 2;
#endif
    int level = 0;
    while (!runs(level)) ++level;
    return level;
}

} // namespace
} // namespace arc

using namespace arc;

extern "C" {

ARC_API const char *arc_levels() { return "amx avx512_bf16 avx512 avx2 plain"; }

ARC_API int32_t arc_runs(int32_t level) { return runs(level); }

ARC_API int32_t arc_fastest() { return fastest(); }

ARC_API void *arc_pool_new() { return new Pool; }

ARC_API void arc_pool_delete(void *pool) { delete static_cast<Pool *>(pool); }

ARC_API int64_t arc_matrix_bytes(int32_t n, int32_t k, int32_t format) {
    return matrix_bytes(n, k, format);
}

ARC_API int64_t arc_matrix_scales(int32_t n, int32_t k, int32_t format) { return matrix_scales(n, k, format); }

ARC_API int64_t arc_workspace(int32_t operation, int32_t type, const void *call) {
    return workspace_bytes(operation, Type(type), call);
}

ARC_API void arc_run(void *pool, int32_t threads, int32_t level, int32_t type, int32_t operation, void *call) {
    auto &team = *static_cast<Pool *>(pool);
    if (operation == PACK) {
        struct Packing {
            const PackCall &call;
            Type type;
        } packing{*static_cast<PackCall *>(call), Type(type)};
        auto job = [](Worker &worker, void *context) {
            auto &packing = *static_cast<Packing *>(context);
            pack(worker, packing.call, packing.type);
        };
        team.run(threads, job, &packing);
        return;
    }
    team.run(threads, kernels_of(level)->jobs[type][operation], call);
}
}
