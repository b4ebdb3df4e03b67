// From LEAST_ROWS on a product is computed in tiles: up to 16 rows of x by a panel of 32 outputs, 32 inputs an instruction.
//
// A panel is what a tile of the right side wants as it is: 16 pairs of inputs, 128 bytes apart, 16 outputs each.
#include "linear.h"
#include "tiles.h"
#ifdef __AMX_BF16__

static constexpr int64_t TILE = 16, DEPTH = 32;  // rows of a tile, inputs of a tile
// Registers; g++ wants their numbers as literals.
#define SUM 0
#define SUM_2 1
#define SUM_NEXT 2
#define SUM_NEXT_2 3
#define X 4
#define X_NEXT 5
#define W 6
#define W_2 7

static TileShapes shapes_for(int64_t rows) {
  TileShapes shapes;
  for (int tile : {SUM, SUM_2, SUM_NEXT, SUM_NEXT_2, X, X_NEXT}) shapes.rows[tile] = min(rows, TILE);
  return shapes;
}

// Rows `first` and, with NEXT, `next` with the 15 after each; sums are [32][32].
template <bool NEXT, bool AHEAD>
static void multiply(const Linear& a, int64_t first, int64_t next, const bf16* w, float* sums) {
  const bf16 *x = a.x + first * a.x_stride, *x_next = a.x + next * a.x_stride;
  const int64_t stride = a.x_stride * sizeof(bf16), ahead = a.k * 32;
  _tile_zero(SUM);
  _tile_zero(SUM_2);
  if (NEXT) _tile_zero(SUM_NEXT);
  if (NEXT) _tile_zero(SUM_NEXT_2);
  for (int64_t k = 0; k < a.k; k += DEPTH, w += DEPTH * 32) {
    if (AHEAD) UNROLL for (int line = 0; line < DEPTH; line++) _mm_prefetch(w + ahead + line * 32, _MM_HINT_T1);
    _tile_loadd(X, x + k, stride);
    _tile_loadd(W, w, 128);
    _tile_loadd(W_2, w + 32, 128);
    _tile_dpbf16ps(SUM, X, W);
    _tile_dpbf16ps(SUM_2, X, W_2);
    if (!NEXT) continue;
    _tile_loadd(X_NEXT, x_next + k, stride);
    _tile_dpbf16ps(SUM_NEXT, X_NEXT, W);
    _tile_dpbf16ps(SUM_NEXT_2, X_NEXT, W_2);
  }
  _tile_stored(SUM, sums, 128);
  _tile_stored(SUM_2, sums + 16, 128);
  if (NEXT) _tile_stored(SUM_NEXT, sums + 512, 128);
  if (NEXT) _tile_stored(SUM_NEXT_2, sums + 528, 128);
}

static void finish_rows(const Linear& a, int64_t start, int64_t end, int64_t panel, const float* sums) {
  for (int64_t row = start; row < end; row++, sums += 32) {
    if (a.silu_mul) finish_gate_up(a, row, panel * 16, load(sums), load(sums + 16));
    else UNROLL for (int h = 0; h < 2; h++) finish(a, row, panel * 32 + h * 16, load(sums + h * 16));
  }
}

// Rows from `start` to `end` by one panel. The last tile ends with the last row: what it repeats of others is dropped.
static void panel_product(const Linear& a, int64_t start, int64_t end, int64_t panel) {
  const bf16* w = a.weight + panel * a.k * 32;
  alignas(64) float sums[32 * 32];
  for (bool ahead = true; start < end; ahead = false) {
    const int64_t stop = min(end, start + 2 * TILE), last = max<int64_t>(0, stop - TILE);
    if (stop - start > TILE) {
      (ahead ? multiply<true, true> : multiply<true, false>)(a, start, last, w, sums);
      finish_rows(a, start, start + TILE, panel, sums);
      finish_rows(a, start + TILE, stop, panel, sums + 32 * (start + 2 * TILE - last));
    } else {
      (ahead ? multiply<false, true> : multiply<false, false>)(a, last, 0, w, sums);
      finish_rows(a, start, stop, panel, sums + 32 * (start - last));
    }
    start = stop;
  }
}

extern "C" void tw_linear(const Linear* a) {
  constexpr int64_t CHUNK = 192, LEAST_ROWS = 4;
  if (!has_tiles || a->rows < LEAST_ROWS || a->k % DEPTH) return linear_by_vectors(a);
  const TileShapes shapes = shapes_for(a->rows);
  const int64_t panels = (a->n + 31) / 32, chunks = (a->rows + CHUNK - 1) / CHUNK;
  const int64_t shares = min<int64_t>(panels, 12 * pool.size());
  pool.run(chunks * shares, [=](int64_t task) {
    const int64_t share = task % shares, start = task / shares * CHUNK, end = min(a->rows, start + CHUNK);
    const Tiles tiles(&shapes);
    for (int64_t panel = panels * share / shares; panel < panels * (share + 1) / shares; panel++)
      panel_product(*a, start, end, panel);
  });
}

#endif
