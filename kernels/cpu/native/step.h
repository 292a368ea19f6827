// A whole step: all tokens through all layers, in one call and one job of the team.
//
// The residual is fp32, and the second products of attention and MLP are added to it as they are made. Between products,
// activations have the model's type, so that the arithmetic is the layer-by-layer path's up to the order of sums.

#pragma once

#include "experts.h"
#include "gate.h"
#include "rows.h"

#include "sections.h"

namespace arc::ARC_LEVEL {

constexpr int ROWS = 8;       // of an item that works row by row
constexpr int ROW_BLOCK = 96; // of an item that is a panel of a product: more, and threads could not share few panels

// A product's items: its panels, and blocks of its rows.
struct Grid {
    Grid(int rows, int panels) : rows(rows), panels(panels), blocks((rows + ROW_BLOCK - 1) / ROW_BLOCK) {}
    int items() const { return panels * blocks; }
    int panel(int item) const { return item % panels; }
    int first(int item) const { return item / panels * ROW_BLOCK; }
    int count(int item) const { return min(ROW_BLOCK, rows - first(item)); }
    const void *soon(const Matrix &matrix, int next) const {
        return next < items() ? panel_data(matrix, panel(next)) : nullptr;
    }
    int rows, panels, blocks;
};

template <class Body> inline void each_row(Worker &worker, int rows, Body &&body) {
    worker.each((rows + ROWS - 1) / ROWS, [&](int item) {
        for (int row = item * ROWS; row < min(rows, (item + 1) * ROWS); ++row) body(row);
    });
}

// y = x W^T (+ bias) in the model's type. row_of(i) gives row i.
template <typename T, class RowOf>
inline void linear(Worker &worker, int rows, const Matrix &matrix, RowOf &&row_of, T *out, int64_t out_stride) {
    Grid grid(rows, panels(matrix.n));
    worker.each(grid.items(), [&](int item) {
        Panel columns = panel(matrix.n, grid.panel(item));
        int first = grid.first(item);
        panel_product<T>(
            grid.count(item), matrix, grid.panel(item), grid.soon(matrix, worker.next(item)), worker.scratch,
            [&](int i) { return row_of(first + i); },
            [&](int i, float *c) {
                T *to = out + (first + i) * out_stride + columns.column;
                lanes(columns.used, [&](int, auto get, auto put) { put(to, get(c)); });
            });
    });
}

inline Matrix of_head(const HeadMatrices &matrices, int head) {
    Matrix matrix = matrices.first;
    matrix.data = static_cast<const char *>(matrix.data) + head * matrices.stride;
    return matrix;
}

// One item of a product with one matrix a head, and the one after it: x and out are [rows][heads] of `x_head` and `out_head` values.
template <typename T>
inline void head_item(int item, int next, int rows, const HeadMatrices &matrices, int heads, const T *x, int64_t x_stride,
                      int64_t x_head, T *out, int64_t out_stride, int64_t out_head, Scratch &scratch) {
    int count = panels(matrices.first.n), head = item / count, number = item % count;
    Panel columns = panel(matrices.first.n, number);
    const void *soon = next < heads * count ? panel_data(of_head(matrices, next / count), next % count) : nullptr;
    panel_product<T>(
        rows, of_head(matrices, head), number, soon, scratch, [&](int i) { return x + i * x_stride + head * x_head; },
        [&](int i, float *c) {
            T *to = out + i * out_stride + head * out_head + columns.column;
            lanes(columns.used, [&](int, auto get, auto put) { put(to, get(c)); });
        });
}

// The gate's logits [rows, E], and from them weights and indices [rows, k].
template <typename T, class RowOf>
inline void gate(Worker &worker, int rows, const Routing &routing, int hidden, RowOf &&row_of, float *logits, float *weights,
                 int64_t *indices) {
    int experts = routing.experts;
    int parts = (experts + GATE_EXPERTS - 1) / GATE_EXPERTS, blocks = (rows + GATE_ROWS - 1) / GATE_ROWS;
    worker.each(parts * blocks, [&](int item) {
        int first = item % parts * GATE_EXPERTS, start = item / parts * GATE_ROWS;
        for (int row = start; row < min(rows, start + GATE_ROWS); ++row) {
            gate_row<T>(row_of(row), routing.gate, hidden, first, min(experts, first + GATE_EXPERTS),
                        logits + int64_t(row) * experts);
        }
    });
    each_row(worker, rows, [&](int row) {
        int64_t place = int64_t(row) * routing.top_k;
        route_row(logits + int64_t(row) * experts, routing, worker.scratch, weights + place, indices + place);
    });
}

inline void add_to(float *to, const float *c, int count) {
    lanes(count, [&](int, auto get, auto put) { put(to, get(to) + get(c)); });
}

// What the layers of a step share, and where it lies in the workspace.
template <typename T> struct StepSpace {
    int down_width = 0, query_lora = 0, query_width, inner = 0, shared_inner = 0, top_k = 0, experts = 0;
    T *x, *down, *query_latent, *query, *latent, *absorbed, *attended_latent, *attended, *active, *shared_active;
    float *logits, *weights;
    int64_t *indices;
    Dispatch pairs;
    int *used; // [layers]: of each layer's experts, those that have tokens
    DecodeItems decode;
    PromptItems<T> prompt;
    int64_t bytes;

    StepSpace(const StepCall &call, Cutter cutter)
        : decode(cutter, call.decode, call.model.heads, call.model.rank),
          prompt(cutter, call.prompt, call.model.heads, call.model.rank, call.model.nope, call.model.rope, call.model.v) {
        const Model &model = call.model;
        int64_t tokens = call.tokens;
        query_width = model.heads * (model.nope + model.rope);
        for (int l = 0; l < model.layers; ++l) {
            const Layer &layer = model.layer[l];
            down_width = max(down_width, layer.down.n);
            query_lora = max(query_lora, layer.query_up.n > 0 ? layer.query_up.k : 0);
            shared_inner = max(shared_inner, layer.shared.down.n > 0 ? inner_stride(layer.shared) : 0);
            if (layer.routing.gate == nullptr) continue;
            inner = max(inner, inner_stride(layer.experts[0]));
            top_k = max(top_k, layer.routing.top_k);
            experts = max(experts, layer.routing.experts);
        }
        int width = model.rank + model.rope;
        x = cutter.take<T>(tokens * model.hidden);
        down = cutter.take<T>(tokens * down_width);
        query_latent = cutter.take<T>(tokens * query_lora);
        query = cutter.take<T>(query_lora > 0 ? tokens * query_width : 0);
        latent = cutter.take<T>(tokens * width);
        absorbed = cutter.take<T>(int64_t(call.decode_tokens) * model.heads * width);
        attended_latent = cutter.take<T>(int64_t(call.decode_tokens) * model.heads * model.rank);
        attended = cutter.take<T>(tokens * model.heads * model.v);
        active = cutter.take<T>(tokens * top_k * inner);
        shared_active = cutter.take<T>(tokens * shared_inner);
        logits = cutter.take<float>(tokens * experts);
        weights = cutter.take<float>(tokens * top_k);
        indices = cutter.take<int64_t>(tokens * top_k);
        pairs.starts = cutter.take<int>(experts + 1);
        pairs.used = cutter.take<int>(experts);
        pairs.tokens = cutter.take<int>(tokens * top_k);
        pairs.weights = cutter.take<float>(tokens * top_k);
        used = cutter.take<int>(model.layers);
        bytes = cutter.used();
    }
};

template <typename T> class StepProgram {
public:
    StepProgram(Worker &worker, StepCall &call)
        : worker_(worker), call_(call), model_(call.model), space_(call, Cutter(call.workspace)),
          sections_(call, worker.first), tokens_(call.tokens), decode_tokens_(call.decode_tokens),
          width_(model_.rank + model_.rope), head_(model_.nope + model_.rope) {}

    void run() {
        worker_.each(1, [&](int) {
            space_.decode.fill(call_.decode, model_.heads, model_.rank);
            space_.prompt.fill(call_.prompt);
        });
        for (int l = 0; l < model_.layers; ++l) {
            const Layer &layer = model_.layer[l];
            sections_.layer(l);
            sections_.open(MLA_ATTN);
            attention(layer, static_cast<T *>(call_.caches[l]));
            sections_.close();
            sections_.open(layer.routing.gate != nullptr ? MOE : DENSE_MLP);
            norm(layer.mlp_norm);
            if (layer.routing.gate != nullptr) experts(layer, l);
            else dense(layer.shared);
            sections_.close();
        }
        each_row(worker_, tokens_, [&](int row) {
            rms_norm_row(residual(row), model_.final_norm, model_.hidden, model_.eps,
                         static_cast<T *>(call_.out) + int64_t(row) * model_.hidden);
        });
    }

private:
    float *residual(int row) const { return call_.residual + int64_t(row) * model_.hidden; }
    T *x(int row) const { return space_.x + int64_t(row) * model_.hidden; }
    const float *turns(int row) const { return call_.turns + int64_t(row) * model_.rope; }

    void norm(const float *weight) {
        each_row(worker_, tokens_,
                 [&](int row) { rms_norm_row(residual(row), weight, model_.hidden, model_.eps, x(row)); });
    }

    void attention(const Layer &layer, T *cache) {
        sections_.open(KV_DOWN);
        norm(layer.attention_norm);
        linear<T>(worker_, tokens_, layer.down, [&](int i) { return x(i); }, space_.down, layer.down.n);
        sections_.next(NORM_ROPE);
        int query_part = layer.down.n - width_, lora = layer.query_up.k;
        bool has_lora = layer.query_up.n > 0;
        each_row(worker_, tokens_, [&](int row) {
            const T *down = space_.down + int64_t(row) * layer.down.n;
            if (has_lora) {
                rms_norm_row(down, layer.query_norm, lora, model_.latent_eps, space_.query_latent + int64_t(row) * lora);
            }
            latent_row(down + query_part, layer.latent_norm, turns(row), model_.rank, model_.rope, model_.latent_eps,
                       space_.latent + int64_t(row) * width_);
        });
        sections_.next(CACHE_WRITE);
        each_row(worker_, tokens_, [&](int row) {
            std::memcpy(cache + call_.slots[row] * width_, space_.latent + int64_t(row) * width_, size_t(width_) * sizeof(T));
        });
        T *query = has_lora ? space_.query : space_.down;
        int64_t query_stride = has_lora ? space_.query_width : layer.down.n;
        if (has_lora) {
            sections_.next(Q_PROJ);
            linear<T>(
                worker_, tokens_, layer.query_up, [&](int i) { return space_.query_latent + int64_t(i) * lora; }, query,
                query_stride);
        }
        sections_.next(ABSORB);
        absorb(layer.kv_up, query, query_stride);
        sections_.next(ATTEND);
        attend_latents(cache);
        attend_prompts(layer.kv_up, query + decode_tokens_ * query_stride, query_stride, cache);
        sections_.next(V_UP);
        int heads = model_.heads;
        worker_.each(decode_tokens_ > 0 ? heads * panels(model_.v) : 0, [&](int item) {
            head_item<T>(item, worker_.next(item), decode_tokens_, layer.kv_up.value, heads, space_.attended_latent,
                         int64_t(heads) * model_.rank, model_.rank, space_.attended, int64_t(heads) * model_.v, model_.v,
                         worker_.scratch);
        });
        sections_.next(O_PROJ);
        add_product(layer.out, space_.attended, int64_t(heads) * model_.v);
        sections_.close();
    }

    // The decode rows' queries into the latents' space, and everybody's rope parts turned.
    void absorb(const KvUp &up, T *query, int64_t query_stride) {
        int heads = model_.heads, products = decode_tokens_ > 0 ? heads * panels(model_.rank) : 0;
        int64_t row_size = int64_t(heads) * width_;
        worker_.each(products + (tokens_ + ROWS - 1) / ROWS, [&](int item) {
            if (item < products) {
                head_item<T>(item, worker_.next(item), decode_tokens_, up.absorb, heads, query, query_stride, head_,
                             space_.absorbed, row_size, width_, worker_.scratch);
                return;
            }
            int first = (item - products) * ROWS;
            for (int row = first; row < min(tokens_, first + ROWS); ++row) {
                for (int h = 0; h < heads; ++h) {
                    T *rope = query + row * query_stride + h * head_ + model_.nope;
                    T *to = row < decode_tokens_ ? space_.absorbed + row * row_size + h * width_ + model_.rank : rope;
                    rope_row(rope, turns(row), model_.rope, to);
                }
            }
        });
    }

    void attend_latents(const T *cache) {
        const DecodeItems &items = space_.decode;
        worker_.each(items.items, [&](int item) {
            decode_item<T>(items, item, worker_.next(item), call_.decode, space_.absorbed, cache, model_.heads, model_.rank, width_,
                           model_.softmax_scale, space_.attended_latent, worker_.scratch);
        });
        constexpr int COLUMNS = 8;
        worker_.each((items.merges + COLUMNS - 1) / COLUMNS, [&](int item) {
            for (int i = item * COLUMNS; i < min(items.merges, (item + 1) * COLUMNS); ++i) {
                merge_item<T>(items, i, call_.decode, model_.heads, model_.rank, space_.attended_latent);
            }
        });
    }

    void attend_prompts(const KvUp &up, const T *query, int64_t query_stride, const T *cache) {
        const PromptItems<T> &items = space_.prompt;
        T *out = space_.attended + int64_t(decode_tokens_) * model_.heads * model_.v;
        worker_.each(items.key_blocks, [&](int key) {
            const T *tokens[KEYS];
            int count = tokens_of(items, key, call_.prompt, cache, width_, tokens);
            latent_panels(tokens, count, model_.rank, model_.rope, items.latents + key * items.latent_size,
                          items.ropes + key * items.rope_size);
        });
        for (int head = 0; items.key_blocks > 0 && head < model_.heads; head += items.at_once) {
            int heads = min(items.at_once, model_.heads - head);
            worker_.each(heads * items.key_blocks, [&](int item) {
                int place = item % heads, key = item / heads;
                KeyBlock<T> block = items.block(place, key);
                const T *tokens[KEYS];
                int count = tokens_of(items, key, call_.prompt, cache, width_, tokens);
                const T *key_rows = static_cast<const T *>(up.key_rows) + int64_t(head + place) * up.nope * up.rank;
                expand_keys(key_rows, up.nope, up.rank, items.latents + key * items.latent_size, block.keys, worker_.scratch);
                expand_values(tokens, count, of_head(up.value, head + place), block.values, worker_.scratch);
            });
            worker_.each(heads * items.query_blocks, [&](int item) {
                int place = item % heads, h = head + place;
                prompt_item(items, item / heads, place, call_.prompt, query + int64_t(h) * head_, query_stride, model_.nope,
                            model_.rope, model_.v, model_.softmax_scale, out + int64_t(h) * model_.v,
                            int64_t(model_.heads) * model_.v, worker_.scratch);
            });
        }
    }

    // residual += a W^T (+ bias)
    void add_product(const Matrix &matrix, const T *a, int64_t stride) {
        Grid grid(tokens_, panels(matrix.n));
        worker_.each(grid.items(), [&](int item) {
            Panel columns = panel(matrix.n, grid.panel(item));
            int first = grid.first(item);
            panel_product<T>(
                grid.count(item), matrix, grid.panel(item), grid.soon(matrix, worker_.next(item)), worker_.scratch,
                [&](int i) { return a + (first + i) * stride; },
                [&](int i, float *c) { add_to(residual(first + i) + columns.column, c, columns.used); });
        });
    }

    void gated(const Gated &mlp, T *active) {
        Grid grid(tokens_, inner_stride(mlp) / INNER);
        worker_.each(grid.items(), [&](int item) {
            int first = grid.first(item);
            gated_panel<T>(
                grid.count(item), mlp, grid.panel(item), grid.soon(mlp.gate_up, worker_.next(item)), worker_.scratch,
                [&](int i) { return x(first + i); }, nullptr, active + int64_t(first) * inner_stride(mlp));
        });
    }

    void dense(const Gated &mlp) {
        gated(mlp, space_.shared_active);
        add_product(mlp.down, space_.shared_active, inner_stride(mlp));
    }

    void experts(const Layer &layer, int number) {
        const Routing &routing = layer.routing;
        const Dispatch &pairs = space_.pairs;
        sections_.open(GATE_SECTION);
        gate<T>(
            worker_, tokens_, routing, model_.hidden, [&](int i) { return x(i); }, space_.logits, space_.weights,
            space_.indices);
        sections_.next(DISPATCH);
        worker_.each(1, [&](int) {
            space_.used[number] =
                dispatch(space_.indices, space_.weights, tokens_, routing.top_k, routing.experts, pairs);
        });
        bool shared = layer.shared.down.n > 0;
        if (shared) {
            sections_.next(SHARED);
            gated(layer.shared, space_.shared_active);
        }
        sections_.next(EXPERTS_SECTION);
        int used = space_.used[number]; // of this layer alone: no later phase writes it
        routed_gated<T>(worker_, ExpertPanels(layer.experts, pairs, used), [&](int token) { return x(token); }, space_.active);
        sections_.next(COMBINE);
        auto add = [&](int token, int column, int width, float *c) { add_to(residual(token) + column, c, width); };
        int columns = panels(model_.hidden), blocks = (tokens_ + TOKEN_BLOCK - 1) / TOKEN_BLOCK;
        worker_.each(columns * blocks, [&](int item) {
            int first = item / columns * TOKEN_BLOCK, last = min(tokens_, first + TOKEN_BLOCK);
            routed_down_panel(layer.experts, pairs, used, space_.active, item % columns, first, last, worker_.scratch, add);
            if (shared) down_panel(layer.shared, space_.shared_active, item % columns, first, last, worker_.scratch, add);
        });
        sections_.close();
    }

    Worker &worker_;
    StepCall &call_;
    const Model &model_;
    StepSpace<T> space_;
    Sections sections_;
    const int tokens_, decode_tokens_, width_, head_;
};

} // namespace arc::ARC_LEVEL
