// Each operation of operations.py on its own, and the table of all of them for this level.

#pragma once

#include "sample.h"
#include "step.h"

namespace arc::ARC_LEVEL {

template <typename T> inline void rms_norm_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<RmsNormCall *>(arguments);
    each_row(worker, call.tokens, [&](int row) {
        auto from = [&](auto *x) {
            auto to = [&](auto *out) { rms_norm_row(x, call.weight, call.n, call.eps, out + int64_t(row) * call.n); };
            if (call.out_type == FLOAT32) to(static_cast<float *>(call.out));
            else to(static_cast<bf16 *>(call.out));
        };
        if (call.x_type == FLOAT32) from(static_cast<const float *>(call.x) + row * call.x_stride);
        else from(static_cast<const bf16 *>(call.x) + row * call.x_stride);
    });
}

template <typename T> inline void add_rms_norm_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<AddRmsNormCall *>(arguments);
    each_row(worker, call.tokens, [&](int row) {
        float *residual = call.residual + int64_t(row) * call.n;
        const T *update = static_cast<const T *>(call.update) + int64_t(row) * call.n;
        lanes(call.n, [&](int, auto get, auto put) { put(residual, get(residual) + get(update)); });
        rms_norm_row(residual, call.weight, call.n, call.eps, static_cast<T *>(call.out) + int64_t(row) * call.n);
    });
}

template <typename T> inline void rope_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<RopeCall *>(arguments);
    each_row(worker, call.tokens, [&](int row) {
        for (int h = 0; h < call.heads; ++h) {
            T *x = static_cast<T *>(call.x) + row * call.token_stride + h * call.head_stride;
            rope_row(x, call.turns + int64_t(row) * call.rope, call.rope, x);
        }
    });
}

template <typename T> inline void latent_write_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<LatentWriteCall *>(arguments);
    each_row(worker, call.tokens, [&](int row) {
        T *to = static_cast<T *>(call.cache) + call.slots[row] * (call.rank + call.rope);
        latent_row(static_cast<const T *>(call.kv) + row * call.kv_stride, call.weight, call.turns + int64_t(row) * call.rope,
                   call.rank, call.rope, call.eps, to);
    });
}

template <typename T> inline void linear_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<LinearCall *>(arguments);
    linear<T>(
        worker, call.tokens, call.matrix, [&](int i) { return static_cast<const T *>(call.x) + i * call.x_stride; },
        static_cast<T *>(call.out), call.matrix.n);
}

template <typename T> inline void gated_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<GatedCall *>(arguments);
    T *active = static_cast<T *>(call.workspace);
    int hidden = call.mlp.gate_up.k, stride = inner_stride(call.mlp);
    Grid grid(call.tokens, stride / INNER);
    worker.each(grid.items(), [&](int item) {
        int first = grid.first(item);
        gated_panel<T>(
            grid.count(item), call.mlp, grid.panel(item), grid.soon(call.mlp.gate_up, worker.next(item)), worker.scratch,
            [&](int i) { return static_cast<const T *>(call.x) + int64_t(first + i) * hidden; }, nullptr,
            active + int64_t(first) * stride);
    });
    linear<T>(
        worker, call.tokens, call.mlp.down, [&](int i) { return active + int64_t(i) * stride; }, static_cast<T *>(call.out),
        call.mlp.down.n);
}

template <typename T> inline void heads_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<HeadsCall *>(arguments);
    int n = call.matrices.first.n;
    worker.each(call.heads * panels(n), [&](int item) {
        head_item<T>(item, worker.next(item), call.tokens, call.matrices, call.heads, static_cast<const T *>(call.x),
                     call.token_stride, call.head_stride, static_cast<T *>(call.out), int64_t(call.heads) * n, n, worker.scratch);
    });
}

// Keys come a head's row after the other, [nope, L]: the product makes them so, and its caller turns them around.
template <typename T> inline void expand_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<ExpandCall *>(arguments);
    typedef typename Stored<T>::Value Value;
    const KvUp &up = call.up;
    int length = call.tokens, blocks = (length + KEYS - 1) / KEYS;
    int64_t size = int64_t(depth<T>(up.rank)) * KEYS;
    auto *latents = static_cast<Value *>(call.workspace);
    auto token = [&](int t) { return static_cast<const T *>(call.latents) + t * call.stride; };
    worker.each(blocks, [&](int block) {
        const T *rows[KEYS];
        int count = min(KEYS, length - block * KEYS);
        for (int t = 0; t < count; ++t) rows[t] = token(block * KEYS + t);
        rows_to_panel(rows, count, up.rank, latents + block * size);
    });
    worker.each(up.heads * blocks, [&](int item) {
        int head = item % up.heads, first = item / up.heads * KEYS, count = min(KEYS, length - first);
        const T *key_rows = static_cast<const T *>(up.key_rows) + int64_t(head) * up.nope * up.rank;
        T *keys = static_cast<T *>(call.keys) + int64_t(head) * up.nope * length + first;
        alignas(64) float c[TILE_ROWS<T> * WIDE];
        for (int d = 0; d < up.nope; d += TILE_ROWS<T>) {
            int rows = min(TILE_ROWS<T>, up.nope - d);
            const T *a[TILE_ROWS<T>];
            for (int r = 0; r < rows; ++r) a[r] = key_rows + int64_t(d + r) * up.rank;
            auto *panel = latents + first / KEYS * size;
            times<false>(a, rows, up.rank, panel, KEYS, c, WIDE, KEYS, panel, worker.scratch);
            for (int r = 0; r < rows; ++r) {
                const float *sums = c + r * WIDE;
                T *to = keys + int64_t(d + r) * length;
                lanes(count, [&](int, auto get, auto put) { put(to, get(sums)); });
            }
        }
        Matrix value = of_head(up.value, head);
        T *values = static_cast<T *>(call.values) + (int64_t(head) * length + first) * up.v;
        for (int number = 0; number < panels(up.v); ++number) {
            int column = panel(up.v, number).column, used = panel(up.v, number).used;
            panel_product<T>(
                count, value, number, nullptr, worker.scratch, [&](int i) { return token(first + i); },
                [&](int i, float *sums) {
                    T *to = values + int64_t(i) * up.v + column;
                    lanes(used, [&](int, auto get, auto put) { put(to, get(sums)); });
                });
        }
    });
}

template <typename T> inline void decode_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<DecodeCall *>(arguments);
    Cutter cutter(call.workspace);
    DecodeItems items(cutter, call.rows, call.heads, call.rank);
    worker.each(1, [&](int) { items.fill(call.rows, call.heads, call.rank); });
    worker.each(items.items, [&](int item) {
        decode_item<T>(items, item, worker.next(item), call.rows, static_cast<const T *>(call.q), static_cast<const T *>(call.cache), call.heads,
                       call.rank, call.width, call.scale, static_cast<T *>(call.out), worker.scratch);
    });
    worker.each(items.merges, [&](int item) {
        merge_item<T>(items, item, call.rows, call.heads, call.rank, static_cast<T *>(call.out));
    });
}

// One value of keys or values as a panel holds it.
inline void put_value(float *panel, int64_t stride, int k, int column, float value) { panel[k * stride + column] = value; }
inline void put_value(uint32_t *panel, int64_t stride, int k, int column, bf16 value) {
    auto *pairs = reinterpret_cast<bf16 *>(panel);
    pairs[(k / 2 * stride + column) * 2 + k % 2] = value;
}

// One row, whose keys and values somebody else has expanded.
template <typename T> inline void prefill_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<PrefillCall *>(arguments);
    Cutter cutter(call.workspace);
    PromptItems<T> items(cutter, call.rows, call.heads, call.rank, call.nope, call.rope, call.v);
    int length = call.rows.lengths[0], width = call.rank + call.rope, head_dim = call.nope + call.rope;
    auto *cache = static_cast<const T *>(call.cache);
    worker.each(1, [&](int) { items.fill(call.rows); });
    worker.each(items.key_blocks, [&](int key) {
        const T *tokens[KEYS];
        int count = tokens_of(items, key, call.rows, cache, width, tokens);
        latent_panels(tokens, count, call.rank, call.rope, items.latents + key * items.latent_size,
                      items.ropes + key * items.rope_size);
    });
    for (int head = 0; head < call.heads; head += items.at_once) {
        int heads = min(items.at_once, call.heads - head);
        worker.each(heads * items.key_blocks, [&](int item) {
            int place = item % heads, key = item / heads, first = key * KEYS, count = min(KEYS, length - first);
            KeyBlock<T> block = items.block(place, key);
            std::memset(block.keys, 0, size_t(items.block_size) * sizeof *block.keys);
            const T *keys = static_cast<const T *>(call.keys) + (head + place) * call.key_strides[0];
            const T *values = static_cast<const T *>(call.values) + (head + place) * call.value_strides[0];
            int64_t stride = round_up(call.v, NARROW);
            for (int t = 0; t < count; ++t) {
                const T *key_of = keys + (first + t) * call.key_strides[1];
                for (int i = 0; i < call.nope; ++i) put_value(block.keys, KEYS, i, t, key_of[i * call.key_strides[2]]);
                const T *value_of = values + (first + t) * call.value_strides[1];
                for (int i = 0; i < call.v; ++i) put_value(block.values, stride, t, i, value_of[i * call.value_strides[2]]);
            }
        });
        worker.each(heads * items.query_blocks, [&](int item) {
            int place = item % heads, h = head + place;
            prompt_item(items, item / heads, place, call.rows, static_cast<const T *>(call.q) + int64_t(h) * head_dim,
                        call.q_stride, call.nope, call.rope, call.v, call.scale,
                        static_cast<T *>(call.out) + int64_t(h) * call.v, int64_t(call.heads) * call.v, worker.scratch);
        });
    }
}

template <typename T> inline void gate_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<GateCall *>(arguments);
    gate<T>(
        worker, call.tokens, call.routing, call.hidden,
        [&](int i) { return static_cast<const T *>(call.x) + int64_t(i) * call.hidden; }, static_cast<float *>(call.workspace),
        call.weights, call.indices);
}

// The same two passes as in a step, but summed up apart from the residual.
template <typename T> struct ExpertsSpace {
    T *active, *shared_active;
    Dispatch pairs;
    int *used;
    ExpertsSpace(Cutter &cutter, const ExpertsCall &call) {
        int64_t choices = int64_t(call.tokens) * call.top_k;
        active = cutter.take<T>(choices * inner_stride(call.experts[0]));
        shared_active = cutter.take<T>(call.shared.down.n > 0 ? int64_t(call.tokens) * inner_stride(call.shared) : 0);
        pairs.starts = cutter.take<int>(call.count + 1);
        pairs.used = cutter.take<int>(call.count);
        pairs.tokens = cutter.take<int>(choices);
        pairs.weights = cutter.take<float>(choices);
        used = cutter.take<int>(1);
    }
};

template <typename T> inline void experts_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<ExpertsCall *>(arguments);
    Cutter cutter(call.workspace);
    ExpertsSpace<T> space(cutter, call);
    const Dispatch &pairs = space.pairs;
    auto x = [&](int token) { return static_cast<const T *>(call.x) + int64_t(token) * call.hidden; };
    bool shared = call.shared.down.n > 0;
    worker.each(1, [&](int) {
        *space.used = dispatch(call.indices, call.weights, call.tokens, call.top_k, call.count, pairs);
    });
    Grid grid(call.tokens, shared ? inner_stride(call.shared) / INNER : 0);
    worker.each(grid.items(), [&](int item) {
        int first = grid.first(item);
        gated_panel<T>(
            grid.count(item), call.shared, grid.panel(item), grid.soon(call.shared.gate_up, worker.next(item)), worker.scratch,
            [&](int i) { return x(first + i); }, nullptr, space.shared_active + int64_t(first) * inner_stride(call.shared));
    });
    int used = *space.used;
    routed_gated<T>(worker, ExpertPanels(call.experts, pairs, used), x, space.active);
    int columns = panels(call.hidden), blocks = (call.tokens + TOKEN_BLOCK - 1) / TOKEN_BLOCK;
    worker.each(columns * blocks, [&](int item) {
        int first = item / columns * TOKEN_BLOCK, last = min(call.tokens, first + TOKEN_BLOCK);
        Panel mine = panel(call.hidden, item % columns);
        float *sums = worker.scratch.template take<float>(size_t(last - first) * WIDE);
        for (int i = 0; i < (last - first) * WIDE; ++i) sums[i] = 0;
        auto add = [&](int token, int, int width, float *c) { add_to(sums + (token - first) * WIDE, c, width); };
        routed_down_panel(call.experts, pairs, used, space.active, item % columns, first, last, worker.scratch, add);
        if (shared) down_panel(call.shared, space.shared_active, item % columns, first, last, worker.scratch, add);
        for (int token = first; token < last; ++token) {
            T *to = static_cast<T *>(call.out) + int64_t(token) * call.hidden + mine.column;
            const float *from = sums + (token - first) * WIDE;
            lanes(mine.used, [&](int, auto get, auto put) { put(to, get(from)); });
        }
    });
}

template <typename T> inline void step_job(Worker &worker, void *arguments) {
    StepProgram<T>(worker, *static_cast<StepCall *>(arguments)).run();
}

// A job whose thread has its tiles in shape.
template <Job JOB> inline void in_shape(Worker &worker, void *arguments) {
    [[maybe_unused]] TileSession session;
    JOB(worker, arguments);
}

template <typename T> inline void fill(Job (&jobs)[OPERATIONS]) {
    jobs[RMS_NORM] = in_shape<rms_norm_job<T>>;
    jobs[ADD_RMS_NORM] = in_shape<add_rms_norm_job<T>>;
    jobs[ROPE] = in_shape<rope_job<T>>;
    jobs[LATENT_WRITE] = in_shape<latent_write_job<T>>;
    jobs[LINEAR] = in_shape<linear_job<T>>;
    jobs[GATED_MLP] = in_shape<gated_job<T>>;
    jobs[ABSORB_OR_VALUE] = in_shape<heads_job<T>>;
    jobs[EXPAND] = in_shape<expand_job<T>>;
    jobs[DECODE] = in_shape<decode_job<T>>;
    jobs[PREFILL] = in_shape<prefill_job<T>>;
    jobs[GATE] = in_shape<gate_job<T>>;
    jobs[EXPERTS] = in_shape<experts_job<T>>;
    jobs[STEP] = in_shape<step_job<T>>;
    jobs[SAMPLE] = drawing::sample_job; // logits are fp32 in every model
    jobs[NOT_FINITE] = drawing::not_finite_job;
}

template <typename T> inline int64_t workspace(int operation, const void *arguments) {
    Cutter cutter(nullptr);
    switch (operation) {
    case GATED_MLP: {
        auto &call = *static_cast<const GatedCall *>(arguments);
        cutter.take<T>(int64_t(call.tokens) * inner_stride(call.mlp));
        break;
    }
    case EXPAND: {
        auto &call = *static_cast<const ExpandCall *>(arguments);
        cutter.take<typename Stored<T>::Value>(int64_t(depth<T>(call.up.rank)) * round_up(call.tokens, KEYS));
        break;
    }
    case DECODE: {
        auto &call = *static_cast<const DecodeCall *>(arguments);
        DecodeItems(cutter, call.rows, call.heads, call.rank);
        break;
    }
    case PREFILL: {
        auto &call = *static_cast<const PrefillCall *>(arguments);
        PromptItems<T>(cutter, call.rows, call.heads, call.rank, call.nope, call.rope, call.v);
        break;
    }
    case GATE: {
        auto &call = *static_cast<const GateCall *>(arguments);
        cutter.take<float>(int64_t(call.tokens) * call.routing.experts);
        break;
    }
    case EXPERTS: ExpertsSpace<T>(cutter, *static_cast<const ExpertsCall *>(arguments)); break;
    case STEP: return StepSpace<T>(*static_cast<const StepCall *>(arguments), cutter).bytes;
    default: break;
    }
    return cutter.used();
}

inline Kernels all_kernels() {
    Kernels kernels{};
    fill<bf16>(kernels.jobs[BFLOAT16]);
    fill<float>(kernels.jobs[FLOAT32]);
    return kernels;
}

} // namespace arc::ARC_LEVEL
