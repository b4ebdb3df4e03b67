// What the kernels share: bf16 in vectors of 16, and the threads.
//
// vdpbf16ps multiplies 16 lanes of bf16 pairs and adds both products, so whatever stands on the right of a product is
// stored in pairs:
//   weights  [N/32][K/2][32][2]            a panel of 32 outputs is one sequential stream; gate/up: 16 of each a panel
//            [N/32][2][K/2][16][2]         with AVX2: a tile has half as many outputs, and its stream should stay in L1
//   K page   [D/2][16 tokens][2]           one page of 16 tokens is one vector of scores for each pair of D
//   V page   [16/2 token pairs][D][2]      follows its K page in memory: pool [blocks][kv_heads][K, V][16 * D]
// AVX2 has no such instruction, and the same layouts suit it: a shift and a mask turn 8 pairs into two vectors of fp32.
//
// Every kernel is a C function of one pointer to a struct of arguments, which kernels.py mirrors.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "thread_pool.h"

#define UNROLL _Pragma("GCC unroll 16")
using bf16 = uint16_t;
using std::max;
using std::min;
constexpr int PAGE = 16;

inline ThreadPool& pool = *new ThreadPool;  // never destroyed: its threads outlive main

#ifdef __AVX512BF16__
#include "vectors_avx512.h"
#else
#include "vectors_avx2.h"
#endif

static inline Vec load_either(const void* p, bool is_fp32, int64_t at, Lanes lanes) {
  return is_fp32 ? load((const float*)p + at, lanes) : load((const bf16*)p + at, lanes);
}

static inline Vec exp2v(Vec x) {  // minimax, relative error 3e-6; x is finite or NaN
  Vec whole = nearest(x), f = x - whole, p = all(0.0095700818f);
  for (float c : {0.055917859f, 0.24024745f, 0.69312182f, 0.99999926f}) p = fmadd(p, f, all(c));
  return times_power_of_two(p, whole);
}

static inline Vec silu(Vec x) { return x / (exp2v(x * all(-1.44269504f)) + all(1.f)); }

// Rows in shares that are worth waking a thread for.
template <class Body>
static void for_rows(int64_t rows, int64_t share, const Body& body) {
  pool.run((rows + share - 1) / share, [&](int64_t i) {
    for (int64_t r = i * share; r < min(rows, (i + 1) * share); r++) body(r);
  });
}
