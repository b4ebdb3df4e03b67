// 16 floats in one register, and products of bf16 pairs by one instruction.
#pragma once

struct Vec {
  __m512 v;
};
using Lanes = __mmask16;
using Operand = bf16;  // what is broadcast in a product

constexpr Lanes ALL = 0xffff;
static inline Lanes lanes_below(int64_t n) { return n >= 16 ? ALL : n <= 0 ? 0 : (1u << n) - 1; }

static inline Vec all(float x) { return {_mm512_set1_ps(x)}; }
static inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline Vec fmadd(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline Vec fmsub(Vec a, Vec b, Vec c) { return {_mm512_fmsub_ps(a.v, b.v, c.v)}; }
static inline Vec larger(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline float sum_of(Vec a) { return _mm512_reduce_add_ps(a.v); }
static inline float max_of(Vec a) { return _mm512_reduce_max_ps(a.v); }
static inline float first_of(Vec a) { return _mm512_cvtss_f32(a.v); }
static inline Vec where(Lanes lanes, Vec yes, Vec no) { return {_mm512_mask_mov_ps(no.v, lanes, yes.v)}; }
static inline uint32_t nan_lanes(Vec a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
static inline uint32_t equal_lanes(Vec a, Vec b, Lanes lanes) {
  return _mm512_mask_cmp_ps_mask(lanes, a.v, b.v, _CMP_EQ_OQ);
}

static inline Vec nearest(Vec x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline Vec times_power_of_two(Vec x, Vec whole) { return {_mm512_scalef_ps(x.v, whole.v)}; }

static inline Vec load(const float* p, Lanes lanes = ALL) { return {_mm512_maskz_loadu_ps(lanes, p)}; }
static inline Vec load(const bf16* p, Lanes lanes = ALL) {
  __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, p)), 16);
  return {_mm512_castsi512_ps(wide)};
}
static inline void store(float* p, Vec v, Lanes lanes = ALL) { _mm512_mask_storeu_ps(p, lanes, v.v); }
static inline void store(bf16* p, Vec v, Lanes lanes = ALL) {
  _mm256_mask_storeu_epi16(p, lanes, (__m256i)_mm512_cvtneps_pbh(v.v));
}

using Pairs = __m512bh;    // 16 pairs of bf16
using Operands = __m512bh;  // one pair, 16 times
static inline Pairs load_pairs(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
static inline Operands broadcast_pair(const Operand* p) {
  int32_t pair;
  memcpy(&pair, p, 4);
  return (__m512bh)_mm512_set1_epi32(pair);
}
static inline Vec add_products(Vec sum, Pairs a, Operands b) { return {_mm512_dpbf16_ps(sum.v, a, b)}; }
static inline void copy_operands(Operand* to, const bf16* from, int64_t count) { memcpy(to, from, count * 2); }

// 16 bf16 become every second of 32: one row of a pair, the other row's stay as they are.
static inline void store_halves(bf16* pairs, const bf16* from, bool odd) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
  if (odd) _mm512_mask_storeu_epi16(pairs, 0xaaaaaaaa, _mm512_slli_epi32(wide, 16));
  else _mm512_mask_storeu_epi16(pairs, 0x55555555, wide);
}

// How many results fit into 32 registers.
constexpr int STREAM = 32;  // outputs that are read together in a product with a weight
constexpr int MAX_TILE_ROWS = 6, SCORE_PAGES = 4, VALUE_VECTORS = 4;
