// What works on one row at a time: a table's rows by their ids, RMSNorm, argmax, rope with the store of K and V.
#include "vectors.h"

struct Gather {
  const char* table;
  const int64_t* ids;
  char* out;
  int64_t rows, row_bytes;
};

extern "C" void tw_gather(const Gather* a) {
  for (int64_t r = 0; r < a->rows; r++)
    memcpy(a->out + r * a->row_bytes, a->table + a->ids[r] * a->row_bytes, a->row_bytes);
}

struct Norm {
  const void* x;  // fp32 or bf16
  const bf16* weight;
  bf16* out;
  int64_t rows, width, x_fp32;
  float eps;
};

template <bool FP32>
static void normalize(const Norm& a, int64_t row) {
  const int64_t n = a.width, at = row * n, whole = n & ~15;
  const Lanes tail = lanes_below(n - whole);
  auto x = [&](int64_t i, Lanes lanes) { return load_either(a.x, FP32, at + i, lanes); };
  Vec sum = x(whole, tail);
  sum = sum * sum;
  for (int64_t i = 0; i < whole; i += 16) sum = fmadd(x(i, ALL), x(i, ALL), sum);
  const Vec scale = all(1.f / std::sqrt(sum_of(sum) / n + a.eps));
  auto write = [&](int64_t i, Lanes lanes) {
    store(a.out + at + i, x(i, lanes) * scale * load(a.weight + i, lanes), lanes);
  };
  for (int64_t i = 0; i < whole; i += 16) write(i, ALL);
  write(whole, tail);
}

extern "C" void tw_rms_norm(const Norm* a) {
  for_rows(a->rows, 32, [=](int64_t r) { a->x_fp32 ? normalize<true>(*a, r) : normalize<false>(*a, r); });
}

struct Argmax {
  const float* logits;
  float* values;  // NaN for a row that holds one
  int64_t* ids;   // the lowest among equals
  int64_t rows, width;
};

extern "C" void tw_argmax(const Argmax* a) {
  for_rows(a->rows, 1, [=](int64_t r) {
    const float* row = a->logits + r * a->width;
    Vec best = all(-INFINITY);
    uint32_t nan = 0;
    for (int64_t i = 0; i < a->width; i += 16) {
      Lanes lanes = lanes_below(a->width - i);
      Vec v = load(row + i, lanes);
      nan |= nan_lanes(v);
      best = where(lanes, larger(best, v), best);
    }
    const float top = max_of(best);
    int64_t i = 0;
    uint32_t hit = 0;
    for (; !nan && i < a->width; i += 16) {
      Lanes lanes = lanes_below(a->width - i);
      if ((hit = equal_lanes(load(row + i, lanes), all(top), lanes))) break;
    }
    a->values[r] = nan ? NAN : top;
    a->ids[r] = nan ? 0 : i + __builtin_ctz(hit);
  });
}

struct RopeStore {
  bf16* qkv;  // [rows][heads + 2 * kv_heads][D]; q is turned in place, k and v go to the cache
  bf16* cache;
  const float* cos_sin;              // [positions][D]: D/2 cosines, then D/2 sines
  const int64_t *positions, *slots;  // slot = block * 16 + offset; -1: a padding row, nothing is stored
  int64_t rows, heads, kv_heads, head_dim;
};

static void rope(bf16* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += 16) {
    Lanes lanes = lanes_below(half - i);
    Vec c = load(cos + i, lanes), s = load(sin + i, lanes);
    Vec a = load(head + i, lanes), b = load(head + half + i, lanes);
    store(head + i, fmsub(a, c, b * s), lanes);
    store(head + half + i, fmadd(b, c, a * s), lanes);
  }
}

extern "C" void tw_rope_store(const RopeStore* a) {
  const int64_t D = a->head_dim, stride = (a->heads + 2 * a->kv_heads) * D;
  for_rows(a->rows, 4, [=](int64_t r) {
    const float *cos = a->cos_sin + a->positions[r] * D, *sin = cos + D / 2;
    for (int64_t h = 0; h < a->heads + a->kv_heads; h++) rope(a->qkv + r * stride + h * D, cos, sin, D / 2);
    if (a->slots[r] < 0) return;
    const int64_t block = a->slots[r] / PAGE, token = a->slots[r] % PAGE;
    for (int64_t h = 0; h < a->kv_heads; h++) {
      const bf16 *k = a->qkv + r * stride + (a->heads + h) * D, *v = k + a->kv_heads * D;
      bf16 *k_page = a->cache + (block * a->kv_heads + h) * 2 * PAGE * D, *v_page = k_page + PAGE * D;
      for (int64_t d = 0; d < D; d += 2) memcpy(k_page + (d * PAGE / 2 + token) * 2, k + d, 4);
      for (int64_t d = 0; d < D; d += 16) store_halves(v_page + (token / 2 * D + d) * 2, v + d, token % 2);
    }
  });
}

extern "C" void tw_set_threads(int64_t threads) { pool.resize(int(threads)); }

// A recorded step: its kernels one after the other, without a look at Python.
struct Call {
  void (*kernel)(const void*);
  const void* arguments;
};

extern "C" void tw_replay(const Call* calls, int64_t count) {
  for (int64_t i = 0; i < count; i++) calls[i].kernel(calls[i].arguments);
}
