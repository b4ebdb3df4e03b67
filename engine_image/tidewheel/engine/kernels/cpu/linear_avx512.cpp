#include "linear.h"
#ifdef __AVX512BF16__

template <int MR, bool AHEAD>
static void linear_tile(const Linear& a, int64_t row, int64_t panel, const char* ahead) {
  const bf16 *x = a.x + row * a.x_stride, *w = a.weight + panel * a.k * 32;
  Vec acc[MR][2];
  UNROLL for (int m = 0; m < MR; m++) acc[m][0] = acc[m][1] = all(0.f);
  for (int64_t k = 0; k < a.k; k += 2, w += 64) {
    if (AHEAD) {
      _mm_prefetch(ahead + k * 64, _MM_HINT_T0);
      _mm_prefetch(ahead + k * 64 + 64, _MM_HINT_T0);
    }
    Pairs w0 = load_pairs(w), w1 = load_pairs(w + 32);
    UNROLL for (int m = 0; m < MR; m++) {
      Operands pair = broadcast_pair(x + m * a.x_stride + k);
      acc[m][0] = add_products(acc[m][0], w0, pair);
      acc[m][1] = add_products(acc[m][1], w1, pair);
    }
  }
  if (a.silu_mul) {
    UNROLL for (int m = 0; m < MR; m++) finish_gate_up(a, row + m, panel * 16, acc[m][0], acc[m][1]);
    return;
  }
  UNROLL for (int m = 0; m < MR; m++) UNROLL for (int h = 0; h < 2; h++)
    finish(a, row + m, panel * 32 + h * 16, acc[m][h]);
}

using LinearTile = void (*)(const Linear&, int64_t, int64_t, const char*);
template <bool A>
static constexpr LinearTile linear_tiles[] = {
    nullptr,           linear_tile<1, A>, linear_tile<2, A>,  linear_tile<3, A>,  linear_tile<4, A>,
    linear_tile<5, A>, linear_tile<6, A>, linear_tile<7, A>,  linear_tile<8, A>,  linear_tile<9, A>,
    linear_tile<10, A>, linear_tile<11, A>, linear_tile<12, A>};

// Chunks of rows outside, panels inside: a chunk of x stays in L2 while the weights stream past it.
void linear_by_vectors(const Linear* a) {
  constexpr int64_t CHUNK = 96, MR = 12;
  const int64_t panels = (a->n + 31) / 32, chunks = (a->rows + CHUNK - 1) / CHUNK, panel_bytes = a->k * 64;
  const int64_t shares = min<int64_t>(panels, 12 * pool.size());
  pool.run(chunks * shares, [=](int64_t task) {
    const int64_t share = task % shares, start = task / shares * CHUNK, end = min(a->rows, start + CHUNK);
    for (int64_t panel = panels * share / shares; panel < panels * (share + 1) / shares; panel++) {
      int64_t row = start, left = (end - row + MR - 1) / MR;
      // A panel read by one tile is prefetched 1 KB ahead; one read by several, during its predecessor's first tile.
      const char* ahead = (const char*)a->weight + panel * panel_bytes + (left == 1 ? 1024 : panel_bytes);
      for (bool first = true; row < end; first = false, left--) {
        int64_t mr = (end - row + left - 1) / left;
        (first ? linear_tiles<true> : linear_tiles<false>)[mr](*a, row, panel, ahead);
        row += mr;
      }
    }
  });
}

#ifndef __AMX_BF16__
extern "C" void tw_linear(const Linear* a) { linear_by_vectors(a); }
#endif

#endif
