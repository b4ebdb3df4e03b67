// A weight into panels.
#include "vectors.h"

struct Pack {
  const bf16* rows;  // [n, k] as in the checkpoint
  bf16* panels;
  int64_t n, k, gate_up;  // gate_up: rows are all of gate, then all of up
};

static int64_t place_in_panel(int64_t K, int64_t k, int64_t j) {
  const int64_t first = j / STREAM * STREAM;
  return first * K + (k & ~1) * STREAM + (j - first) * 2 + (k & 1);
}

extern "C" void tw_pack(const Pack* a) {
  pool.run((a->n + 31) / 32, [=](int64_t panel) {
    for (int64_t j = 0; j < 32; j++) {
      int64_t row = panel * 32 + j, limit = a->n;
      if (a->gate_up) {
        limit = j < 16 ? a->n / 2 : a->n;
        row = panel * 16 + (j < 16 ? j : a->n / 2 + j - 16);
      }
      for (int64_t k = 0; k < a->k; k++)
        a->panels[panel * a->k * 32 + place_in_panel(a->k, k, j)] = row < limit ? a->rows[row * a->k + k] : 0;
    }
  });
}
