// One token a row, from its logits, its filters and one uniform number (docs/sampling.md says in which order), and which
// rows hold what is no number.
//
// Every filter cuts the descending order of the logits at one place, so a row needs the beginning of that order alone, and
// little of that exactly. A bound below which nothing can be in it leaves few candidates; they are put into buckets that
// follow each other in the order; and only a bucket in which a cut or the draw falls is sorted. Sums that decide are in
// double.

#pragma once

namespace arc::ARC_LEVEL::drawing {

constexpr int CHUNK = 256; // values whose largest is known before a place among them is looked for
constexpr int CELL = 16;   // values of which the largest is kept, so that the k-th of those is a bound for k values
constexpr int SUMMED = 64; // weights of which the sum is in float

// The largest of x [n], without NaN; -inf of none.
inline float largest_of(const float *x, int n) {
    float most = -INFINITY;
    int i = 0;
    if (n >= LANES) {
        Floats best = load(x);
        for (i = LANES; i + LANES <= n; i += LANES) best = larger(best, load(x + i));
        most = largest(best);
    }
    for (; i < n; ++i) most = x[i] > most ? x[i] : most;
    return most;
}

// The first place of the largest value. Always a place, whatever x holds.
inline int first_largest(const float *x, int n) {
    float most = -INFINITY;
    int place = 0;
    for (int first = 0; first < n; first += CHUNK) {
        float top = largest_of(x + first, min(CHUNK, n - first));
        if (top > most) {
            most = top;
            place = first;
        }
    }
    while (place + 1 < n && x[place] != most) ++place;
    return place;
}

// The weights of x [n] beside that of `most`, which is 1.
inline void weigh(const float *x, int n, float most, float temperature, float *weights) {
    lanes(n, [&](int, auto get, auto put) {
        Floats scaled = (get(x) - most) / temperature;
        put(weights, exponential(scaled < -88.0f ? splat(-88.0f) : scaled)); // there it is 0 already
    });
}

// Just below `value` > 0: what a uniform number below 1 may reach at most.
inline double below(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, 8);
    bits -= bits != 0;
    std::memcpy(&value, &bits, 8);
    return value;
}
inline double smaller(double a, double b) { return a < b ? a : b; }

// Weights of a whole row as sums of blocks, in double from one block to the next.
struct Mass {
    double *cumulative; // after each block
    int blocks;
    double all() const { return cumulative[blocks - 1]; }
};
inline Mass mass_of(const float *x, int n, float most, float temperature, Scratch &scratch) {
    Mass mass{scratch.take<double>(size_t(n / SUMMED + 1)), (n + SUMMED - 1) / SUMMED};
    double all = 0;
    for (int block = 0; block < mass.blocks; ++block) {
        float weights[SUMMED];
        int count = min(SUMMED, n - block * SUMMED);
        weigh(x + block * SUMMED, count, most, temperature, weights);
        Floats total{};
        lanes(count, [&](int, auto get, auto) { total += get(weights); });
        mass.cumulative[block] = all += double(sum(total));
    }
    return mass;
}

// No filter: over all tokens by id.
inline int draw_whole(const float *x, int n, float most, float temperature, double uniform, Scratch &scratch) {
    Mass mass = mass_of(x, n, most, temperature, scratch);
    double target = smaller(uniform * mass.all(), below(mass.all()));
    int block = 0;
    while (block + 1 < mass.blocks && !(mass.cumulative[block] > target)) ++block;
    int first = block * SUMMED, count = min(SUMMED, n - first);
    float weights[SUMMED];
    weigh(x + first, count, most, temperature, weights);
    // The block's sum in float may be above that of its parts: then its last one with a weight is meant.
    double sums[SUMMED], end = 0;
    for (int i = 0; i < count; ++i) sums[i] = end += double(weights[i]);
    target = smaller(target - (block > 0 ? mass.cumulative[block - 1] : 0.0), below(end));
    int place = 0;
    while (place + 1 < count && !(sums[place] > target)) ++place;
    return first + place;
}

// A float as a number of the same order; both zeros are one.
inline uint32_t ordered(float value) {
    uint32_t bits;
    value = value == 0.0f ? 0.0f : value;
    std::memcpy(&bits, &value, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Not above the k-th largest of values [n], 1 <= k <= n, and next to it: two digits of its order are enough for a bound.
inline float near_kth(const float *values, int n, int k) {
    uint32_t found = 0, known = 0;
    for (int shift = 24; shift >= 16; shift -= 8) {
        int counts[256] = {};
        for (int i = 0; i < n; ++i) {
            uint32_t key = ordered(values[i]);
            counts[key >> shift & 255] += (key & known) == found;
        }
        uint32_t digit = 255;
        while (digit > 0 && counts[digit] < k) k -= counts[digit--];
        found |= digit << shift;
        known |= 255u << shift;
    }
    uint32_t bits = found & 0x80000000u ? found ^ 0x80000000u : ~found;
    float bound;
    std::memcpy(&bound, &bits, 4);
    return bound == bound ? bound : -INFINITY; // below -inf there is nothing
}

// A candidate: first in order is the larger logit, and of equal ones the lower id.
inline uint64_t candidate(float value, int id) { return uint64_t(~ordered(value)) << 32 | uint32_t(id); }

// Sorts keys [n]; `other` has as much room. Where the result is: one of the two. By digits, from the last one, each pass
// stable: the ids ascend already. Work grows with n alone, and equal digits cost a look.
inline uint64_t *sorted(uint64_t *keys, uint64_t *other, int n) {
    if (n <= 24) {
        for (int i = 1; i < n; ++i) {
            uint64_t key = keys[i];
            int place = i;
            for (; place > 0 && keys[place - 1] > key; --place) keys[place] = keys[place - 1];
            keys[place] = key;
        }
        return keys;
    }
    for (int shift = 32; shift < 64; shift += 8) {
        int starts[256] = {};
        for (int i = 0; i < n; ++i) ++starts[keys[i] >> shift & 255];
        if (starts[keys[0] >> shift & 255] == n) continue;
        int start = 0;
        for (int digit = 0; digit < 256; ++digit) {
            int count = starts[digit];
            starts[digit] = start;
            start += count;
        }
        for (int i = 0; i < n; ++i) other[starts[keys[i] >> shift & 255]++] = keys[i];
        uint64_t *swapped = keys;
        keys = other;
        other = swapped;
    }
    return keys;
}

struct Filters {
    float temperature, min_p; // min_p 0: none
    int top_k;                // not above the vocabulary, which is none
    double top_p;             // 1 or more: none
};

// Candidates in buckets of falling logits. Their weights are summed bucket by bucket, and in order within one.
class Order {
public:
    // keys and weights [count], of ascending ids; `lowest` is the least logit among them, `scratch` what is sorted in.
    Order(const uint64_t *keys, const float *weights, const float *x, int count, float most, float lowest, float temperature,
          Scratch &scratch)
        : x_(x), most_(most), temperature_(temperature), keys_(scratch.take<uint64_t>(size_t(count))),
          other_(scratch.take<uint64_t>(size_t(count))), weights_(scratch.take<float>(size_t(count))) {
        buckets_ = max(1, min(MOST_BUCKETS, count / 8));
        for (int bucket = 0; bucket < buckets_; ++bucket) starts_[bucket + 1] = 0, after_[bucket] = 0;
        float scale = most > lowest ? float(buckets_) / (most - lowest) : 0.0f;
        uint8_t *mine = scratch.take<uint8_t>(size_t(count));
        for (int i = 0; i < count; ++i) {
            int bucket = max(0, min(buckets_ - 1, int((most - x[uint32_t(keys[i])]) * scale))); // what is no number, too
            mine[i] = uint8_t(bucket);
            ++starts_[bucket + 1];
            after_[bucket] += double(weights[i]);
        }
        int next[MOST_BUCKETS];
        next[0] = starts_[0] = 0;
        for (int bucket = 1; bucket < buckets_; ++bucket) {
            next[bucket] = starts_[bucket] += starts_[bucket - 1];
            after_[bucket] += after_[bucket - 1];
        }
        starts_[buckets_] = count;
        for (int i = 0; i < count; ++i) keys_[next[mine[i]]++] = keys[i];
    }

    int id(int place) const { return int(uint32_t(sorted_[place - sorted_from_])); }

    // The weight of the first `count` >= 1 candidates.
    double of_first(int count) {
        int bucket = 0;
        while (starts_[bucket + 1] < count) ++bucket;
        if (starts_[bucket + 1] == count) return after_[bucket];
        open(bucket);
        double all = before(bucket);
        for (int i = 0; i < count - starts_[bucket]; ++i) all += double(weights_[i]);
        return all;
    }

    struct Found {
        int place;
        double sum; // of the weights up to it, its own included
    };
    // The first of the first `limit` places at which the weights add up to `share`; `past`: to more. The last one if none.
    Found reaching(double share, bool past, int limit) {
        auto there = [&](double sum) { return past ? sum > share : sum >= share; };
        int bucket = 0;
        while (starts_[bucket + 1] < limit && !there(after_[bucket])) ++bucket;
        open(bucket);
        int first = starts_[bucket], last = min(starts_[bucket + 1], limit) - 1;
        double all = before(bucket);
        for (int place = first;; ++place) {
            all += double(weights_[place - first]);
            if (place >= last || there(all)) return {place, all};
        }
    }

private:
    static constexpr int MOST_BUCKETS = 256;

    double before(int bucket) const { return bucket > 0 ? after_[bucket - 1] : 0.0; }

    // Sorts a bucket that holds something.
    void open(int bucket) {
        int from = starts_[bucket], count = starts_[bucket + 1] - from;
        sorted_ = sorted(keys_ + from, other_ + from, count);
        sorted_from_ = from;
        for (int i = 0; i < count; ++i) weights_[i] = x_[uint32_t(sorted_[i])];
        weigh(weights_, count, most_, temperature_, weights_);
    }

    const float *x_;
    float most_, temperature_;
    uint64_t *keys_, *other_; // by bucket
    float *weights_;          // of the bucket that is open, in order
    uint64_t *sorted_ = nullptr;
    int sorted_from_ = 0;
    int buckets_;
    int starts_[MOST_BUCKETS + 1];
    double after_[MOST_BUCKETS]; // the weight up to the bucket's end
};

// Some filter: over what it leaves, in descending order.
inline int draw_filtered(const float *x, int n, const Filters &filters, double uniform, Scratch &scratch) {
    int cells = (n + CELL - 1) / CELL;
    float *tops = scratch.take<float>(size_t(cells));
    for (int cell = 0; cell < cells; ++cell) tops[cell] = largest_of(x + cell * CELL, min(CELL, n - cell * CELL));
    float most = largest_of(tops, cells), temperature = filters.temperature;
    // Where neither top_k nor min_p says what is left, top_p is a share of the whole row. Then nothing counts whose like
    // all together would not fill what top_p leaves out.
    bool by_mass = filters.top_k >= n && filters.min_p <= 0 && filters.top_p < 1 - 1e-5;
    double mass = by_mass ? mass_of(x, n, most, temperature, scratch).all() : 0;
    double least_weight = by_mass ? (1 - filters.top_p) * mass / (2.0 * n) : double(filters.min_p);
    float bound = -INFINITY;
    if (least_weight > 0) bound = float(double(most) + double(temperature) * (__builtin_log(least_weight) - 1e-3));
    bound -= 1e-6f * (most > 0 ? most : -most); // rounding; what passes is looked at again
    if (filters.top_k <= cells) {
        float kth = near_kth(tops, cells, filters.top_k);
        bound = kth > bound ? kth : bound;
    }
    uint64_t *keys = scratch.take<uint64_t>(size_t(n));
    float *weights = scratch.take<float>(size_t(n));
    int count = 0;
    for (int cell = 0; cell < cells; ++cell) {
        if (!(tops[cell] >= bound)) continue;
        for (int i = cell * CELL, last = min(n, i + CELL); i < last; ++i) {
            if (x[i] >= bound) {
                weights[count] = x[i];
                keys[count++] = candidate(x[i], i);
            }
        }
    }
    weigh(weights, count, most, temperature, weights);
    // What weighs less than the smallest normal number weighs nothing.
    float least = filters.min_p > 1.17549435e-38f ? filters.min_p : 1.17549435e-38f, lowest = most;
    int left = 0;
    for (int i = 0; i < count; ++i) {
        float value = x[uint32_t(keys[i])];
        keys[left] = keys[i];
        weights[left] = weights[i];
        bool stays = weights[i] >= least;
        left += stays;
        lowest = stays && value < lowest ? value : lowest;
    }
    if (left == 0) return first_largest(x, n);
    Order order(keys, weights, x, left, most, lowest, temperature, scratch);
    int kept = min(left, filters.top_k);
    double total = by_mass ? mass : order.of_first(kept);
    Order::Found end = order.reaching(filters.top_p * total, false, kept);
    double target = smaller(uniform * end.sum, below(end.sum));
    return order.id(order.reaching(target, true, end.place + 1).place);
}

inline void sample_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<SampleCall *>(arguments);
    worker.each(call.rows, [&](int row) {
        const float *x = call.logits + int64_t(row) * call.vocab;
        Filters filters{call.temperature[row], call.min_p[row], call.top_k[row], call.top_p[row]};
        int n = call.vocab, token;
        if (filters.temperature <= 0) token = first_largest(x, n);
        else if (filters.top_k >= n && filters.min_p <= 0 && filters.top_p >= 1)
            token = draw_whole(x, n, largest_of(x, n), filters.temperature, call.uniform[row], worker.scratch);
        else token = draw_filtered(x, n, filters, call.uniform[row], worker.scratch);
        call.tokens[row] = token;
    });
}

// Which rows hold NaN or an infinity, and how many do.
inline void not_finite_job(Worker &worker, void *arguments) {
    auto &call = *static_cast<NotFiniteCall *>(arguments);
    worker.each(call.rows, [&](int row) {
        const float *x = call.x + int64_t(row) * call.n;
        Floats lost{}; // 0 as long as all are numbers, NaN from then on
        lanes(call.n, [&](int, auto get, auto) {
            Floats value = get(x);
            lost += value - value;
        });
        call.found[row] = !(sum(lost) == 0.0f);
    });
    worker.each(1, [&](int) {
        call.count = 0;
        for (int row = 0; row < call.rows; ++row) call.count += call.found[row];
    });
}

} // namespace arc::ARC_LEVEL::drawing
