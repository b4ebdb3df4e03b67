// x times a weight in panels, with what follows it: the residual added, or SiLU(gate) * up.
#pragma once
#include "vectors.h"

struct Linear {
  const bf16 *x, *weight;
  const void* residual;  // null, or what is added: fp32 or bf16
  void* out;
  int64_t rows, n, k, x_stride;
  int64_t silu_mul, residual_fp32, out_fp32;  // silu_mul: n counts gate and up, the output has n/2 columns
};

#ifdef __AVX512BF16__
void linear_by_vectors(const Linear* a);  // any number of rows
#endif

// 16 columns of one row, from `column` on.
static inline void finish(const Linear& a, int64_t row, int64_t column, Vec v) {
  const int64_t at = row * a.n + column;
  const Lanes lanes = lanes_below(a.n - column);
  if (a.residual) v = v + load_either(a.residual, a.residual_fp32, at, lanes);
  if (a.out_fp32) store((float*)a.out + at, v, lanes);
  else store((bf16*)a.out + at, v, lanes);
}

static inline void finish_gate_up(const Linear& a, int64_t row, int64_t column, Vec gate, Vec up) {
  store((bf16*)a.out + row * (a.n / 2) + column, silu(gate) * up, lanes_below(a.n / 2 - column));
}
