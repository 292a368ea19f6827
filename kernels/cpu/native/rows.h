// Paged attention over many rows: how the work is cut into items, and where each item's result lies.

#pragma once

#include "decode_amx.h"
#include "prefill.h"
#include "workspace.h"

namespace arc::ARC_LEVEL {

// Items of absorbed attention: one chunk of one row, with all its columns (queries times heads).
struct DecodeItems {
    int *row, *chunk;      // [items]
    int *query;            // [rows]: the row's first
    float **partials;      // [rows]: of its chunks; null where there is one chunk
    int *merge_row, *merge_column; // [merges]
    float *room;
    int items = 0, merges = 0, most_columns = 0;
    int64_t floats = 0;

    // The counts follow from the call alone, so every thread knows them without waiting.
    DecodeItems(Cutter &cutter, const Rows &rows, int heads, int rank) {
        for (int r = 0; r < rows.rows; ++r) {
            int parts = chunks(rows.lengths[r]), columns = rows.counts[r] * heads;
            items += parts;
            most_columns = max(most_columns, columns);
            if (parts > 1) {
                merges += columns;
                floats += parts * Partials::floats(columns, rank);
            }
        }
        row = cutter.take<int>(items);
        chunk = cutter.take<int>(items);
        query = cutter.take<int>(rows.rows);
        partials = cutter.take<float *>(rows.rows);
        merge_row = cutter.take<int>(merges);
        merge_column = cutter.take<int>(merges);
        room = cutter.take<float>(floats);
    }

    // One thread's work, before the items.
    void fill(const Rows &rows, int heads, int rank) const {
        int item = 0, merge = 0, first = 0;
        float *next = room;
        for (int r = 0; r < rows.rows; ++r) {
            int parts = chunks(rows.lengths[r]), columns = rows.counts[r] * heads;
            query[r] = first;
            first += rows.counts[r];
            for (int c = 0; c < parts; ++c, ++item) row[item] = r, chunk[item] = c;
            partials[r] = parts > 1 ? next : nullptr;
            if (parts == 1) continue;
            next += parts * Partials::floats(columns, rank);
            for (int c = 0; c < columns; ++c, ++merge) merge_row[merge] = r, merge_column[merge] = c;
        }
    }
};

// q [Q, h, width] absorbed, to out [Q, h, rank]. next: the item that the thread most likely takes next.
template <typename T>
inline void decode_item(const DecodeItems &items, int item, int next, const Rows &rows, const T *q, const T *cache, int heads,
                        int rank, int width, float scale, T *out, Scratch &scratch) {
    int row = items.row[item], chunk = items.chunk[item], count = rows.counts[row], columns = count * heads;
    int first = chunk * CHUNK, last = min(rows.lengths[row], first + CHUNK);
    int *visible = scratch.take<int>(size_t(columns));
    for (int c = 0; c < columns; ++c) visible[c] = rows.lengths[row] - count + 1 + c / heads;
    int64_t start = int64_t(items.query[row]) * heads;
    bool whole = items.partials[row] == nullptr;
    float *own = whole ? scratch.take<float>(size_t(Partials::floats(columns, rank))) : nullptr;
    Partials partials{whole ? own : items.partials[row], columns, rank};
    Soon<T> soon;
    if (next < items.items) {
        int then = items.row[next], from = items.chunk[next] * CHUNK;
        soon.count = min(Soon<T>::MOST, rows.lengths[then] - from);
        Pages(rows, then).rows(cache, width, from, soon.count, soon.tokens);
    }
    attend(q + start * width, columns, cache, width, rank, Pages(rows, row), first, last, visible, scale,
           partials.part(whole ? 0 : chunk), soon, scratch);
    for (int c = 0; whole && c < columns; ++c) merge(partials, 1, c, out + (start + c) * rank);
}

template <typename T>
inline void merge_item(const DecodeItems &items, int item, const Rows &rows, int heads, int rank, T *out) {
    int row = items.merge_row[item], column = items.merge_column[item];
    Partials partials{items.partials[row], rows.counts[row] * heads, rank};
    merge(partials, chunks(rows.lengths[row]), column, out + (int64_t(items.query[row]) * heads + column) * rank);
}

// Items of expanded attention: blocks of keys, and blocks of queries, of all rows.
template <typename T> struct PromptItems {
    typedef typename Stored<T>::Value Value;
    int *key_row, *key_block;     // [key_blocks]
    int *first_key;               // [rows]: the row's first block of keys
    int *query_row, *query_block; // [query_blocks]
    int *first_query;             // [rows]
    Value *latents, *ropes;       // [key_blocks][depth][KEYS]
    Value *heads_keys;            // [heads at once][key_blocks][KeyBlock]
    int key_blocks = 0, query_blocks = 0;
    int at_once = 0; // heads whose keys and values are there together
    int nope, v;
    int64_t latent_size, rope_size, block_size;

    static constexpr int64_t MOST_BYTES = 64 << 20; // of the keys and values of the heads that run at once

    PromptItems(Cutter &cutter, const Rows &rows, int heads, int rank, int nope, int rope, int v) : nope(nope), v(v) {
        for (int r = 0; r < rows.rows; ++r) {
            key_blocks += (rows.lengths[r] + KEYS - 1) / KEYS;
            query_blocks += (rows.counts[r] + QUERIES - 1) / QUERIES;
        }
        latent_size = int64_t(depth<T>(rank)) * KEYS;
        rope_size = int64_t(depth<T>(rope)) * KEYS;
        block_size = round_up(KeyBlock<T>::size(nope, v), 16);
        if (key_blocks > 0) {
            int64_t a_head = key_blocks * block_size * int64_t(sizeof(Value));
            at_once = int(MOST_BYTES / a_head);
            at_once = max(1, min(at_once, heads));
        }
        key_row = cutter.take<int>(key_blocks);
        key_block = cutter.take<int>(key_blocks);
        first_key = cutter.take<int>(rows.rows);
        query_row = cutter.take<int>(query_blocks);
        query_block = cutter.take<int>(query_blocks);
        first_query = cutter.take<int>(rows.rows);
        latents = cutter.take<Value>(key_blocks * latent_size);
        ropes = cutter.take<Value>(key_blocks * rope_size);
        heads_keys = cutter.take<Value>(int64_t(at_once) * key_blocks * block_size);
    }

    // Blocks of queries come last to first: the later ones see more keys, and the longest items should start first.
    void fill(const Rows &rows) const {
        int key = 0, item = 0, query = 0;
        for (int r = 0; r < rows.rows; ++r) {
            first_key[r] = key;
            first_query[r] = query;
            query += rows.counts[r];
            for (int b = 0; b * KEYS < rows.lengths[r]; ++b, ++key) key_row[key] = r, key_block[key] = b;
            for (int b = (rows.counts[r] + QUERIES - 1) / QUERIES; b-- > 0; ++item) query_row[item] = r, query_block[item] = b;
        }
    }

    KeyBlock<T> block(int head_place, int key) const {
        return KeyBlock<T>(heads_keys + (int64_t(head_place) * key_blocks + key) * block_size, nope);
    }
};

// The cached tokens of a block of keys; gives how many there are.
template <typename T>
inline int tokens_of(const PromptItems<T> &items, int key, const Rows &rows, const T *cache, int width, const T **tokens) {
    int row = items.key_row[key], first = items.key_block[key] * KEYS, count = min(KEYS, rows.lengths[row] - first);
    Pages(rows, row).rows(cache, width, first, count, tokens);
    return count;
}

// One block of queries of one head, whose keys stand at `head_place`. q and out are rows of all the prompts' tokens.
template <typename T>
inline void prompt_item(const PromptItems<T> &items, int item, int head_place, const Rows &rows, const T *q, int64_t q_stride,
                        int nope, int rope, int v, float scale, T *out, int64_t out_stride, Scratch &scratch) {
    int row = items.query_row[item], first = items.query_block[item] * QUERIES;
    int count = min(QUERIES, rows.counts[row] - first);
    int64_t token = items.first_query[row] + first;
    int key = items.first_key[row];
    attend_prompt(
        q + token * q_stride, q_stride, count, rows.lengths[row] - rows.counts[row] + first, nope, rope, v, scale,
        [&](int b) { return items.block(head_place, key + b); },
        [&](int b) { return items.ropes + (key + b) * items.rope_size; }, out + token * out_stride, out_stride, scratch);
}

} // namespace arc::ARC_LEVEL
