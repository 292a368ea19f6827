// What crosses the border to Python: plain structures and functions, mirrored in binding.py.
//
// Sizes as in operations.py: T tokens, R rows, h heads, H hidden, E experts, k experts a token, I an expert's inner size,
// rank, nope, rope, v of a head, W = rank + rope. All pointers are the caller's, and nothing here keeps one.

#pragma once

#include <cstdint>

namespace arc {

enum Type : int32_t { BFLOAT16 = 0, FLOAT32 = 1 };

// How a matrix's values are stored. Activations have the model's type, whatever the weights have.
enum Format : int32_t { FORMAT_BF16 = 0, FORMAT_F32 = 1, FORMAT_INT8 = 2, FORMAT_INT4 = 3 };

// A weight [n, k] in panels of columns (matrix.h). `bias` [n] or null.
struct Matrix {
    const void *data;
    const float *scales; // int8 and int4: [groups, padded columns]; else null
    const float *bias;
    int32_t n, k;
    int32_t format;
    int32_t unused;
};

// One matrix a head, one after the other.
struct HeadMatrices {
    Matrix first;
    int64_t stride; // bytes from one head's data to the next one's
};

// kv_b_proj in the three forms that it is used in.
struct KvUp {
    HeadMatrices absorb; // n = rank, k = nope
    HeadMatrices value;  // n = v, k = rank
    const void *key_rows; // [h, nope, rank] as in the checkpoint: the keys of a prompt
    int32_t heads, nope, rank, v;
};

// A gated MLP. gate_up holds, for each 32 inner columns, those of the gate and then those of up.
struct Gated {
    Matrix gate_up; // n = 2 * I rounded up to 32, k = H
    Matrix down;    // n = H, k = I
};

struct Routing {
    const float *gate; // [E, H]; null: no experts
    const float *bias; // [E] or null
    int32_t experts, top_k, groups, top_groups;
    int32_t softmax;   // else sigmoid
    int32_t method;    // 0 greedy, 1 group_max, 2 group_top2
    int32_t normalise;
    float scale;
};

struct Layer {
    const float *attention_norm; // [H]
    Matrix down;                 // q_a and kv_a, or q and kv_a without a query latent
    const float *query_norm;     // [q_lora]
    Matrix query_up;             // n = 0 without a query latent
    const float *latent_norm;    // [rank]
    KvUp kv_up;
    Matrix out;
    const float *mlp_norm; // [H]
    Routing routing;       // without a gate it is a dense layer, whose MLP is `shared`
    const Gated *experts; // [E]
    Gated shared;         // n = 0: none
};

struct Model {
    int32_t type;
    int32_t layers;
    const Layer *layer;
    int32_t hidden, heads, rank, nope, rope, v;
    float eps, latent_eps, softmax_scale;
    const float *final_norm; // [H]
};

// Rows of paged attention. Row r's counts[r] queries are the last of its lengths[r] tokens.
struct Rows {
    const int32_t *lengths, *counts;
    const int64_t *tables; // [rows, stride]
    int64_t stride;
    int32_t rows;
    int32_t page_size;
};

struct Section {
    int32_t name; // index into SECTION_NAMES of binding.py
    int32_t layer;
    int64_t began, ended; // ns, CLOCK_MONOTONIC
};

// One call of one operation: its arguments, in the order of Operation below. `workspace` is as large as arc_workspace says.

struct RmsNormCall {
    const void *x; // [T, n], rows x_stride values apart
    const float *weight;
    void *out; // [T, n] of out_type
    int64_t x_stride;
    int32_t tokens, n, x_type, out_type;
    float eps;
};

struct AddRmsNormCall {
    float *residual;    // [T, H]
    const void *update; // [T, H]
    const float *weight;
    void *out; // [T, H]
    int32_t tokens, n;
    float eps;
};

struct RopeCall {
    void *x; // [T, n, rope]
    const float *turns;
    int64_t token_stride, head_stride;
    int32_t tokens, heads, rope;
};

struct LatentWriteCall {
    const void *kv; // [T, W], rows kv_stride values apart
    void *cache;
    const int64_t *slots;
    const float *weight, *turns;
    int64_t kv_stride;
    int32_t tokens, rank, rope;
    float eps;
};

struct LinearCall {
    const void *x; // [T, k], rows x_stride values apart
    void *out;     // [T, n]
    int64_t x_stride;
    int32_t tokens, unused;
    Matrix matrix;
};

struct GatedCall {
    const void *x; // [T, H]
    void *out;     // [T, H]
    void *workspace;
    int32_t tokens, unused;
    Gated mlp;
};

struct HeadsCall {
    const void *x; // [T, h, k]
    void *out;     // [T, h, n]
    int64_t token_stride, head_stride;
    int32_t tokens, heads;
    HeadMatrices matrices;
};

struct ExpandCall {
    const void *latents; // [L, rank], rows stride values apart
    void *keys;          // [h, nope, L]
    void *values;        // [h, L, v]
    void *workspace;
    int64_t stride;
    int32_t tokens, unused;
    KvUp up;
};

struct DecodeCall {
    const void *q; // [Q, h, W]
    const void *cache;
    void *out; // [Q, h, rank]
    void *workspace;
    int32_t heads, rank, width;
    float scale;
    Rows rows;
};

struct PrefillCall {
    const void *q; // [T, h, nope + rope], tokens q_stride values apart
    const void *cache;
    const void *keys, *values; // of the row's tokens: [h, L, nope] and [h, L, v]
    void *out;                 // [T, h, v]
    void *workspace;
    int64_t q_stride, key_strides[3], value_strides[3];
    int32_t heads, rank, nope, rope, v;
    float scale;
    Rows rows; // one
};

struct GateCall {
    const void *x; // [T, H]
    float *weights;
    int64_t *indices; // [T, k]
    void *workspace;
    int32_t tokens, hidden;
    Routing routing;
};

struct ExpertsCall {
    const void *x; // [T, H]
    const float *weights;
    const int64_t *indices; // [T, k]
    void *out;              // [T, H]
    void *workspace;
    int32_t tokens, hidden, count, top_k;
    const Gated *experts;
    Gated shared; // n = 0: none
};

struct PackCall {
    const void *weight; // [n, k] of the model's type, or fp32 for a matrix of FORMAT_F32
    int64_t row_stride, column_stride;
    Matrix matrix; // its data and scales are written
};

// A step through all layers of a model.
struct StepCall {
    Model model;
    Rows decode, prompt;
    const int64_t *slots; // [T]
    const float *turns;   // [T, rope]: cos, sin of each pair
    void *const *caches;  // of each layer: [slots, W]
    float *residual;      // [T, H]
    void *out;            // [T, H]: the normalised residual after the last layer
    void *workspace;
    int32_t tokens, decode_tokens; // these come first
    Section *sections;             // null: nothing is recorded
    int32_t section_room, section_count;
};

struct SampleCall {
    const float *logits;      // [rows, vocab]
    const float *temperature; // [rows], as all below; 0: greedy
    const float *min_p;       // 0: none
    const double *top_p;      // 1: none
    const double *uniform;
    const int32_t *top_k; // the vocabulary: none
    int64_t *tokens;
    int32_t rows, vocab;
};

struct NotFiniteCall {
    const float *x; // [rows, n]
    int32_t *found; // [rows]: 1 where a row holds NaN or an infinity
    int32_t rows, n;
    int32_t count, unused; // of the ones; written
};

enum Operation : int32_t {
    RMS_NORM, ADD_RMS_NORM, ROPE, LATENT_WRITE, LINEAR, GATED_MLP, ABSORB_OR_VALUE, EXPAND, DECODE, PREFILL, GATE, EXPERTS,
    PACK, STEP, SAMPLE, NOT_FINITE, OPERATIONS
};

} // namespace arc

extern "C" {
// The levels that were built, the most of a processor first, as text: "amx avx512_bf16 avx512 avx2 plain".
const char *arc_levels();
// Whether this processor runs a level.
int32_t arc_runs(int32_t level);
// The level, by its place in that text, that is fastest on this processor.
int32_t arc_fastest();
void *arc_pool_new();
void arc_pool_delete(void *pool);
int64_t arc_workspace(int32_t operation, int32_t type, const void *call);
int64_t arc_matrix_bytes(int32_t n, int32_t k, int32_t format);
int64_t arc_matrix_scales(int32_t n, int32_t k, int32_t format);
// Runs a call on up to `threads` threads. Nothing is checked: binding.py does.
void arc_run(void *pool, int32_t threads, int32_t level, int32_t type, int32_t operation, void *call);
}
