// What some families do to qkv before rope: a bias (Qwen2), a norm of each head of q and k (Qwen3).
#include "vectors.h"

struct AdjustHeads {
  bf16* qkv;                            // [rows][heads + 2 * kv_heads][D], changed in place
  const bf16 *bias, *q_norm, *k_norm;   // any may be null; a norm's weight is [D]
  int64_t rows, heads, kv_heads, head_dim;
  float eps;
};

static void add_bias(bf16* head, const bf16* bias, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store(head + i, load(head + i, ALL) + load(bias + i, ALL), ALL);
}

static void normalize_head(bf16* head, const bf16* weight, int64_t n, float eps) {
  Vec sum = all(0.f);
  for (int64_t i = 0; i < n; i += 16) sum = fmadd(load(head + i, ALL), load(head + i, ALL), sum);
  const Vec scale = all(1.f / std::sqrt(sum_of(sum) / n + eps));
  for (int64_t i = 0; i < n; i += 16) store(head + i, load(head + i, ALL) * scale * load(weight + i, ALL), ALL);
}

extern "C" void tw_adjust_heads(const AdjustHeads* a) {
  const int64_t D = a->head_dim, heads = a->heads + 2 * a->kv_heads;
  for_rows(a->rows, 8, [=](int64_t r) {
    for (int64_t h = 0; h < heads; h++) {
      bf16* head = a->qkv + (r * heads + h) * D;
      if (a->bias) add_bias(head, a->bias + h * D, D);
      const bf16* norm = h < a->heads ? a->q_norm : h < a->heads + a->kv_heads ? a->k_norm : nullptr;
      if (norm) normalize_head(head, norm, D, a->eps);
    }
  });
}
