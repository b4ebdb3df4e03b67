// Attention over the paged pool; decodes and prefill chunks alike.
#include <vector>

#include "tiles.h"
#include "vectors.h"

struct Attention {
  const bf16 *q, *pool_pages;  // a row of q begins with [heads * D]
  const int32_t *block_tables, *query_starts, *context_lens;  // [S][table_stride], [S + 1], [S] with this step's tokens
  bf16* out;                                                  // [rows][heads * D]
  int64_t sequences, heads, kv_heads, head_dim, table_stride, q_stride;
  float scale;
};

constexpr float LOWEST = -1e30f;  // instead of minus infinity: every exponent stays finite
constexpr int TILE = 4, TOKENS = TILE * PAGE, MAX_ROWS = 32, MAX_DIM = 256;  // of one task

struct Task {
  int32_t seq, first_query, queries, kv_head, first_page, end_page, split;  // split: index of a partial result, or -1
};

constexpr int LEAST_TILE_ROWS = 8;  // fewer cost less in vectors

using PageList = const bf16* const*;  // where each page of a tile is

struct Rows {  // working memory of one task: row = query * group + head in the group
  alignas(64) Operand q[MAX_ROWS * MAX_DIM], p[MAX_ROWS * TOKENS];
  alignas(64) bf16 v_tail[PAGE * MAX_DIM];
  alignas(64) float scores[MAX_ROWS * TOKENS], out[MAX_ROWS * MAX_DIM], sum[MAX_ROWS * 16];
  float top[MAX_ROWS], decay[MAX_ROWS];
  int32_t limit[MAX_ROWS];
};

template <int MR>
static void scores_tile(Rows& t, int row, PageList k, PageList next, int64_t D) {
  for (int first = 0; first < TILE; first += SCORE_PAGES) {
    Vec acc[MR][SCORE_PAGES];
    UNROLL for (int m = 0; m < MR; m++) UNROLL for (int p = 0; p < SCORE_PAGES; p++) acc[m][p] = all(0.f);
    for (int64_t d = 0; d < D; d += 2) {
      Pairs page[SCORE_PAGES];
      UNROLL for (int p = 0; p < SCORE_PAGES; p++) {
        page[p] = load_pairs(k[first + p] + d * PAGE);
        if (next) _mm_prefetch(next[first + p] + d * PAGE, _MM_HINT_T1);
      }
      UNROLL for (int m = 0; m < MR; m++) {
        Operands q = broadcast_pair(t.q + (row + m) * D + d);
        UNROLL for (int p = 0; p < SCORE_PAGES; p++) acc[m][p] = add_products(acc[m][p], page[p], q);
      }
    }
    UNROLL for (int m = 0; m < MR; m++) UNROLL for (int p = 0; p < SCORE_PAGES; p++)
      store(t.scores + (row + m) * TOKENS + (first + p) * PAGE, acc[m][p]);
  }
}

template <int MR, int NR>
static void values_tile(Rows& t, int row, PageList v, PageList next, int pages, int64_t d, int64_t D) {
  Vec acc[MR][NR];
  UNROLL for (int m = 0; m < MR; m++) {
    Vec decay = all(t.decay[row + m]);
    UNROLL for (int n = 0; n < NR; n++) acc[m][n] = load(t.out + (row + m) * D + d + n * 16) * decay;
  }
  for (int p = 0; p < pages; p++)
    for (int i = 0; i < PAGE; i += 2) {
      Pairs pairs[NR];
      UNROLL for (int n = 0; n < NR; n++) {
        const int64_t at = i * D + (d + n * 16) * 2;
        pairs[n] = load_pairs(v[p] + at);
        if (next) _mm_prefetch(next[p] + PAGE * D + at, _MM_HINT_T1);
      }
      UNROLL for (int m = 0; m < MR; m++) {
        Operands weight = broadcast_pair(t.p + (row + m) * TOKENS + p * PAGE + i);
        UNROLL for (int n = 0; n < NR; n++) acc[m][n] = add_products(acc[m][n], pairs[n], weight);
      }
    }
  UNROLL for (int m = 0; m < MR; m++) UNROLL for (int n = 0; n < NR; n++)
    store(t.out + (row + m) * D + d + n * 16, acc[m][n]);
}

// Online softmax in base 2, of one row and the tokens from `start` on.
static void soften(Rows& t, int r, int start, float scale) {
  Vec s[TILE], top = all(t.top[r]), sum = all(0.f);
  UNROLL for (int p = 0; p < TILE; p++) s[p] = load(t.scores + r * TOKENS + p * PAGE);
  if (t.limit[r] < start + TOKENS)
    for (int p = 0; p < TILE; p++) s[p] = where(lanes_below(t.limit[r] - start - p * PAGE), s[p], all(LOWEST));
  UNROLL for (int p = 0; p < TILE; p++) top = larger(top, s[p]);
  top = all(max_of(top));
  UNROLL for (int p = 0; p < TILE; p++) {
    s[p] = exp2v((s[p] - top) * all(scale));
    sum = sum + s[p];
    store(t.p + r * TOKENS + p * PAGE, s[p]);
  }
  Vec decay = exp2v((all(t.top[r]) - top) * all(scale));
  t.decay[r] = first_of(decay);
  t.top[r] = first_of(top);
  store(t.sum + r * 16, fmadd(load(t.sum + r * 16), decay, sum));
}

template <int MR>
static void attend_rows(Rows& t, int row, PageList k, PageList v, PageList next, int pages, int start, float scale, int64_t D) {
  scores_tile<MR>(t, row, k, next, D);
  for (int r = row; r < row + MR; r++) soften(t, r, start, scale);
  int64_t d = 0;
  for (; d + 16 * VALUE_VECTORS <= D; d += 16 * VALUE_VECTORS)
    values_tile<MR, VALUE_VECTORS>(t, row, v, next, pages, d, D);
  for (; d < D; d += 16) values_tile<MR, 1>(t, row, v, next, pages, d, D);
}

#ifdef __AMX_BF16__
// 16 rows at once. What lies beyond the last row is computed as well and never read.
//   0 to 3: sums; 4: q, 5: a page of K, 32 dimensions of 16 tokens; 6: weights of 16 tokens, 7: those of V, 16 dimensions
static const TileShapes attention_shapes{.row_bytes = {64, 64, 64, 64, 64, 64, 32, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 8}};

static void scores_in_tiles(Rows& t, int row, PageList k, int64_t D) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t d = 0; d < D; d += 32) {
    _tile_loadd(4, t.q + row * D + d, D * 2);
    _tile_loadd(5, k[0] + d * PAGE, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, k[1] + d * PAGE, 64);
    _tile_dpbf16ps(1, 4, 5);
    _tile_loadd(5, k[2] + d * PAGE, 64);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(5, k[3] + d * PAGE, 64);
    _tile_dpbf16ps(3, 4, 5);
  }
  float* scores = t.scores + row * TOKENS;
  _tile_stored(0, scores, TOKENS * 4);
  _tile_stored(1, scores + PAGE, TOKENS * 4);
  _tile_stored(2, scores + 2 * PAGE, TOKENS * 4);
  _tile_stored(3, scores + 3 * PAGE, TOKENS * 4);
}

static void values_in_tiles(Rows& t, int row, PageList v, int pages, int64_t D) {
  for (int64_t d = 0; d < D; d += 32) {
    float* out = t.out + row * D + d;
    _tile_loadd(0, out, D * 4);
    _tile_loadd(1, out + 16, D * 4);
    for (int p = 0; p < pages; p++) {
      _tile_loadd(6, t.p + row * TOKENS + p * PAGE, TOKENS * 2);
      _tile_loadd(7, v[p] + d * 2, D * 4);
      _tile_dpbf16ps(0, 6, 7);
      _tile_loadd(7, v[p] + d * 2 + 32, D * 4);
      _tile_dpbf16ps(1, 6, 7);
    }
    _tile_stored(0, out, D * 4);
    _tile_stored(1, out + 16, D * 4);
  }
}

static void attend_in_tiles(Rows& t, int rows, PageList k, PageList v, int pages, int start, float scale, int64_t D) {
  for (int row = 0; row < rows; row += 16) {
    scores_in_tiles(t, row, k, D);
    for (int r = row; r < min(rows, row + 16); r++) {
      soften(t, r, start, scale);
      const Vec decay = all(t.decay[r]);
      for (int64_t d = 0; d < D; d += 16) store(t.out + r * D + d, load(t.out + r * D + d) * decay);
    }
    values_in_tiles(t, row, v, pages, D);
  }
}
#endif

static void attend(const Attention& a, const Task& task, const Task& following, float* partial) {
  using Attend = void (*)(Rows&, int, PageList, PageList, PageList, int, int, float, int64_t);
  static constexpr Attend attends[] = {nullptr,        attend_rows<1>, attend_rows<2>, attend_rows<3>,
                                       attend_rows<4>, attend_rows<5>, attend_rows<6>};
  alignas(64) static thread_local Rows t;
  const int64_t D = a.head_dim, group = a.heads / a.kv_heads;
  const int first_row = a.query_starts[task.seq], queries = a.query_starts[task.seq + 1] - first_row;
  const int context = a.context_lens[task.seq], rows = task.queries * group;
  const float scale = a.scale * 1.44269504f;  // exponents in base 2
  for (int r = 0; r < rows; r++) {
    int query = task.first_query + r / group, head = task.kv_head * group + r % group;
    copy_operands(t.q + r * D, a.q + (first_row + query) * a.q_stride + head * D, D);
    t.limit[r] = context - queries + query + 1;
    t.top[r] = LOWEST;
  }
#ifdef __AMX_BF16__
  const Tiles tiles(has_tiles && rows >= LEAST_TILE_ROWS && D % 32 == 0 ? &attention_shapes : nullptr);
#endif
  memset(t.sum, 0, rows * 64);
  memset(t.out, 0, rows * D * 4);
  auto k_page = [&](const Task& of, int page) {
    int64_t block = a.block_tables[of.seq * a.table_stride + min(page, of.end_page - 1)];
    return a.pool_pages + (block * a.kv_heads + of.kv_head) * 2 * PAGE * D;
  };
  for (int page = task.first_page; page < task.end_page; page += TILE) {
    const bf16 *k[TILE], *v[TILE], *next[TILE];
    const int pages = min(TILE, task.end_page - page);
    const bool is_last = page + TILE >= task.end_page;
    for (int p = 0; p < TILE; p++) {  // what the table lacks is its last page again, masked
      k[p] = k_page(task, page + p);
      v[p] = k[p] + PAGE * D;
      next[p] = is_last ? k_page(following, following.first_page + p) : k_page(task, page + TILE + p);
    }
    int stale = (page + pages) * PAGE - context;  // slots nobody wrote for this sequence: 0 * NaN would be NaN
    if (stale > 0) {
      memcpy(t.v_tail, v[pages - 1], PAGE * D * 2);
      for (int i = PAGE - stale; i < PAGE; i++)
        for (int64_t d = 0; d < D; d++) t.v_tail[((i / 2) * D + d) * 2 + i % 2] = 0;
      v[pages - 1] = t.v_tail;
    }
#ifdef __AMX_BF16__
    if (tiles.are_used) {
      attend_in_tiles(t, rows, k, v, pages, page * PAGE, scale, D);
      continue;
    }
#endif
    for (int row = 0, left = (rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS; row < rows; left--) {
      int mr = (rows - row + left - 1) / left;
      attends[mr](t, row, k, v, row ? nullptr : next, pages, page * PAGE, scale, D);
      row += mr;
    }
  }
  for (int r = 0; r < rows; r++) {
    float total = sum_of(load(t.sum + r * 16));
    Vec inverse = all(1.f / total);
    bf16* out = a.out + ((first_row + task.first_query + r / group) * a.heads + task.kv_head * group + r % group) * D;
    float* part = partial ? partial + r * (D + 1) : nullptr;
    for (int64_t d = 0; d < D; d += 16) {
      Vec v = load(t.out + r * D + d) * inverse;
      if (part) store(part + d, v);
      else store(out + d, v);
    }
    if (part) part[D] = t.top[r] * scale + std::log2(total);
  }
}

// Long contexts in small batches: a decode is cut into splits of pages, and the results merged by their log-sum-exp.
static void merge(const Attention& a, const Task& task, const float* partials, int splits) {
  const int64_t D = a.head_dim, group = a.heads / a.kv_heads;
  for (int64_t r = 0; r < group; r++) {
    float top = -INFINITY, total = 0;
    for (int s = 0; s < splits; s++) top = max(top, partials[(s * group + r) * (D + 1) + D]);
    for (int s = 0; s < splits; s++) total += std::exp2(partials[(s * group + r) * (D + 1) + D] - top);
    bf16* out = a.out + (a.query_starts[task.seq] * a.heads + task.kv_head * group + r) * D;
    for (int64_t d = 0; d < D; d += 16) {
      Vec sum = all(0.f);
      for (int s = 0; s < splits; s++) {
        const float* part = partials + (s * group + r) * (D + 1);
        sum = fmadd(all(std::exp2(part[D] - top) / total), load(part + d), sum);
      }
      store(out + d, sum);
    }
  }
}

extern "C" void tw_attention(const Attention* a) {
  constexpr int SPLIT_PAGES = 16;  // at least: below this a split costs more than it balances
  static thread_local std::vector<Task> tasks;
  static thread_local std::vector<float> partials;
  tasks.clear();
  const int64_t group = a->heads / a->kv_heads, block = max<int64_t>(1, MAX_ROWS / group);
  const int64_t wanted = 4 * pool.size() / max<int64_t>(1, a->sequences * a->kv_heads);
  const int64_t part = group * (a->head_dim + 1);  // floats of a partial result
  int num_splits = 0;
  for (int seq = 0; seq < a->sequences; seq++) {
    const int queries = a->query_starts[seq + 1] - a->query_starts[seq], context = a->context_lens[seq];
    for (int end = queries; end > 0; end -= block) {  // the last queries of a chunk see most: start with them
      const int first = max<int>(0, end - block), pages = (context - queries + end + PAGE - 1) / PAGE;
      const int splits = queries > 1 ? 1 : max<int>(1, min<int64_t>(wanted, pages / SPLIT_PAGES));
      for (int h = 0; h < a->kv_heads; h++)
        for (int s = 0; s < splits; s++) {
          const int split = splits > 1 ? num_splits++ : -1;
          tasks.push_back({seq, first, end - first, h, pages * s / splits, pages * (s + 1) / splits, split});
        }
    }
  }
  partials.resize(max<size_t>(partials.size(), num_splits * part));
  float* parts = partials.data();
  const Task* list = tasks.data();
  const int64_t count = tasks.size();
  const int64_t step = pool.size();
  pool.run(count, [=](int64_t i) {
    attend(*a, list[i], list[min(i + step, count - 1)], list[i].split < 0 ? nullptr : parts + list[i].split * part);
  });
  for (int64_t i = 0; i < count;) {
    int64_t end = i + 1;
    if (list[i].split >= 0) {
      while (end < count && list[end].seq == list[i].seq && list[end].kv_head == list[i].kv_head) end++;
      merge(*a, list[i], parts + list[i].split * part, end - i);
    }
    i = end;
  }
}
