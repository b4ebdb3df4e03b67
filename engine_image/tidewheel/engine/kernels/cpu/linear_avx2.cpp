#include "linear.h"
#ifndef __AVX512BF16__
#include <memory>

// x is widened to fp32 once, in blocks [K/8][rows of a tile][8]: a tile reads it as one stream.
constexpr int64_t MR = 6, BLOCK = 8, CHUNK = 48;

struct Tile {
  const Linear& a;
  const float* x;
  int64_t row, panel;
  float* gates;  // SiLU waits here for the other half of its panel: [rows of a chunk][16]
};

// One pair of K for 16 outputs of each of HALVES streams, which are `apart` from each other. All even products come
// first: with both at a time, six rows would need more registers than there are.
template <int ROWS, int HALVES>
static inline void multiply(__m256 (&acc)[ROWS][2 * HALVES], const bf16* w, int64_t apart, const float* x) {
  UNROLL for (int odd = 0; odd < 2; odd++) {
    __m256 wide[2 * HALVES];
    UNROLL for (int n = 0; n < 2 * HALVES; n++) {
      const __m256i pairs = _mm256_loadu_si256((const __m256i*)(w + n / 2 * apart + n % 2 * 16));
      wide[n] = odd ? odd_of(pairs) : even_of(pairs);
    }
    UNROLL for (int m = 0; m < ROWS; m++) {
      const __m256 value = _mm256_broadcast_ss(x + m * BLOCK + odd);
      UNROLL for (int n = 0; n < 2 * HALVES; n++) acc[m][n] = _mm256_fmadd_ps(wide[n], value, acc[m][n]);
    }
  }
}

static void finish_tile(const Tile& t, const float* sums, int rows, int half, int halves) {
  for (int m = 0; m < rows; m++)
    for (int h = half; h < half + halves; h++, sums += 16) {
      if (!t.a.silu_mul) finish(t.a, t.row + m, t.panel * 32 + h * 16, load(sums));
      else if (h == 0) store(t.gates + m * 16, load(sums));
      else finish_gate_up(t.a, t.row + m, t.panel * 16, load(t.gates + m * 16), load(sums));
    }
}

// HALVES of a panel of 32 outputs, from `half` on. `ahead` is what to fetch meanwhile.
template <int ROWS, int HALVES>
static void linear_tile(const Tile& t, int half, const char* ahead) {
  const int64_t K = t.a.k, apart = K * STREAM;
  const bf16* w = t.a.weight + (2 * t.panel + half) * apart;
  const float* x = t.x;
  __m256 acc[ROWS][2 * HALVES];
  UNROLL for (int m = 0; m < ROWS; m++) UNROLL for (int n = 0; n < 2 * HALVES; n++) acc[m][n] = _mm256_setzero_ps();
  int64_t k = 0;
  for (; k + BLOCK <= K; k += BLOCK, x += ROWS * BLOCK)
    UNROLL for (int i = 0; i < BLOCK; i += 2, w += 2 * STREAM, ahead += 4 * STREAM) {
      UNROLL for (int h = 0; h < HALVES; h++) _mm_prefetch(ahead + h * apart * 2, _MM_HINT_T0);
      multiply<ROWS, HALVES>(acc, w, apart, x + i);
    }
  for (int64_t i = 0; k + i < K; i += 2, w += 2 * STREAM) multiply<ROWS, HALVES>(acc, w, apart, x + i);
  float sums[ROWS * HALVES * 16];
  UNROLL for (int m = 0; m < ROWS; m++) UNROLL for (int n = 0; n < 2 * HALVES; n++)
    _mm256_storeu_ps(sums + (m * 2 * HALVES + n) * 8, acc[m][n]);
  finish_tile(t, sums, ROWS, half, HALVES);
}

using LinearTile = void (*)(const Tile&, int, const char*);
static constexpr LinearTile whole_tiles[] = {nullptr, linear_tile<1, 2>, linear_tile<2, 2>, linear_tile<3, 2>};
static constexpr LinearTile half_tiles[] = {nullptr,           linear_tile<1, 1>, linear_tile<2, 1>, linear_tile<3, 1>,
                                            linear_tile<4, 1>, linear_tile<5, 1>, linear_tile<6, 1>};

static void widen_tile(const Linear& a, float* to, int64_t row, int64_t rows) {
  for (int64_t m = 0; m < rows; m++) {
    const bf16* x = a.x + (row + m) * a.x_stride;
    int64_t k = 0;
    for (; k + BLOCK <= a.k; k += BLOCK) _mm256_storeu_ps(to + k * rows + m * BLOCK, widen(x + k));
    for (int64_t i = 0; k + i < a.k; i++) {
      uint32_t bits = uint32_t(x[k + i]) << 16;
      memcpy(to + k * rows + m * BLOCK + i, &bits, 4);
    }
  }
}

// The rows of a matrix in chunks, and those of a chunk in tiles that are as even as can be.
struct Chunk {
  int64_t start, rows;
  Chunk(const Linear& a, int64_t index) : start(index * CHUNK), rows(min(CHUNK, a.rows - start)) {}
  int64_t tiles() const { return (rows + MR - 1) / MR; }
  int64_t tile(int64_t index) const { return start + rows * index / tiles(); }
};

static float* room_for(int64_t floats) {
  static std::unique_ptr<float[]> room;
  static int64_t size = 0;
  if (floats > size) room.reset(new (std::align_val_t(64)) float[size = floats]);
  return room.get();
}

// Chunks of rows outside, panels inside: a chunk of x stays in L2 while the weights stream past it.
extern "C" void tw_linear(const Linear* a) {
  const int64_t panels = (a->n + 31) / 32, chunks = (a->rows + CHUNK - 1) / CHUNK;
  const int64_t shares = min<int64_t>(panels, 12 * pool.size()), width = (a->k + BLOCK - 1) / BLOCK * BLOCK;
  float* wide = room_for(a->rows * width);
  constexpr int64_t TILES = CHUNK / MR;
  pool.run(TILES * (chunks - 1) + Chunk(*a, chunks - 1).tiles(), [=](int64_t i) {
    const Chunk chunk(*a, i / TILES);
    const int64_t row = chunk.tile(i % TILES);
    widen_tile(*a, wide + row * width, row, chunk.tile(i % TILES + 1) - row);
  });
  pool.run(chunks * shares, [=](int64_t task) {
    alignas(32) float gates[CHUNK * 16];
    const int64_t share = task % shares;
    const Chunk chunk(*a, task / shares);
    const bool is_whole = chunk.rows <= 3;
    for (int64_t panel = panels * share / shares; panel < panels * (share + 1) / shares; panel++)
      for (int half = 0; half < (is_whole ? 1 : 2); half++) {
        const char* w = (const char*)(a->weight + (2 * panel + half) * a->k * STREAM);
        // A stream read by one tile is fetched 2 KB ahead; one read by several, during its predecessor's first tile.
        const char* ahead = w + (chunk.tiles() == 1 ? 2048 : a->k * STREAM * 2);
        for (int64_t i = 0; i < chunk.tiles(); i++) {
          const int64_t row = chunk.tile(i), rows = chunk.tile(i + 1) - row;
          const Tile tile = {*a, wide + row * width, row, panel, gates + (row - chunk.start) * 16};
          (is_whole ? whole_tiles : half_tiles)[rows](tile, half, i ? w : ahead);
        }
      }
  });
}

#endif
