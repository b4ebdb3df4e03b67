// 16 floats in two registers; bf16 pairs are products of fp32 after a shift (the odd ones) or a mask (the even ones).
#pragma once

struct Vec {
  __m256 lo, hi;
};
using Lanes = int;  // how many, from the first
using Operand = float;

constexpr Lanes ALL = 16;
static inline Lanes lanes_below(int64_t n) { return n >= 16 ? 16 : n <= 0 ? 0 : int(n); }

static inline Vec all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline Vec fmadd(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline Vec fmsub(Vec a, Vec b, Vec c) {
  return {_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
}
static inline Vec larger(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline float first_of(Vec a) { return _mm256_cvtss_f32(a.lo); }
static inline float sum_of(Vec a) {
  __m256 v = _mm256_add_ps(a.lo, a.hi);
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float max_of(Vec a) {
  __m256 v = _mm256_max_ps(a.lo, a.hi);
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
static inline Vec where(Lanes lanes, Vec yes, Vec no) {
  const __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), limit = _mm256_set1_epi32(lanes);
  const __m256i second = _mm256_add_epi32(first, _mm256_set1_epi32(8));
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, first))),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, second)))};
}
static inline uint32_t bits_of(__m256 lo, __m256 hi) { return _mm256_movemask_ps(lo) | _mm256_movemask_ps(hi) << 8; }
static inline uint32_t nan_lanes(Vec a) {
  return bits_of(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q));
}
static inline uint32_t equal_lanes(Vec a, Vec b, Lanes lanes) {
  return bits_of(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)) & ((1u << lanes) - 1);
}

static inline Vec nearest(Vec x) {
  constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.lo, NEAREST), _mm256_round_ps(x.hi, NEAREST)};
}
static inline __m256 power_of_two(__m256 whole) {  // by the exponent's bits: 0 below -126, infinite above 127
  whole = _mm256_min_ps(_mm256_set1_ps(128.f), _mm256_max_ps(_mm256_set1_ps(-127.f), whole));
  __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
static inline Vec times_power_of_two(Vec x, Vec whole) {
  return {_mm256_mul_ps(x.lo, power_of_two(whole.lo)), _mm256_mul_ps(x.hi, power_of_two(whole.hi))};
}

static inline __m256 widen(const bf16* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline __m256i narrow(__m256 v) {  // to the nearest, ties to even; 8 bf16 in the low halves of 32 bits
  __m256i bits = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), is_nan), 16);
}
static inline Vec load(const float* p, Lanes lanes = ALL) {
  if (lanes >= 16) return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  alignas(32) float some[16] = {};
  memcpy(some, p, lanes * 4);
  return {_mm256_load_ps(some), _mm256_load_ps(some + 8)};
}
static inline Vec load(const bf16* p, Lanes lanes = ALL) {
  if (lanes >= 16) return {widen(p), widen(p + 8)};
  alignas(32) bf16 some[16] = {};
  memcpy(some, p, lanes * 2);
  return {widen(some), widen(some + 8)};
}
static inline void store(float* p, Vec v, Lanes lanes = ALL) {
  if (lanes >= 16) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
    return;
  }
  alignas(32) float some[16];
  store(some, v);
  memcpy(p, some, lanes * 4);
}
static inline void store(bf16* p, Vec v, Lanes lanes = ALL) {
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow(v.lo), narrow(v.hi)), 0b11011000);
  if (lanes >= 16) {
    _mm256_storeu_si256((__m256i*)p, packed);
    return;
  }
  alignas(32) bf16 some[16];
  _mm256_store_si256((__m256i*)some, packed);
  memcpy(p, some, lanes * 2);
}

struct Pairs {  // 16 pairs, apart
  Vec even, odd;
};
struct Operands {
  __m256 even, odd;
};
static inline __m256 even_of(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
static inline __m256 odd_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000))));
}
static inline Pairs load_pairs(const bf16* p) {
  __m256i lo = _mm256_loadu_si256((const __m256i*)p), hi = _mm256_loadu_si256((const __m256i*)(p + 16));
  return {{even_of(lo), even_of(hi)}, {odd_of(lo), odd_of(hi)}};
}
static inline Operands broadcast_pair(const Operand* p) { return {_mm256_broadcast_ss(p), _mm256_broadcast_ss(p + 1)}; }
static inline Vec add_products(Vec sum, Pairs a, Operands b) {
  sum = {_mm256_fmadd_ps(a.even.lo, b.even, sum.lo), _mm256_fmadd_ps(a.even.hi, b.even, sum.hi)};
  return {_mm256_fmadd_ps(a.odd.lo, b.odd, sum.lo), _mm256_fmadd_ps(a.odd.hi, b.odd, sum.hi)};
}
static inline void copy_operands(Operand* to, const bf16* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) store(to + i, load(from + i, lanes_below(count - i)), lanes_below(count - i));
}

// 16 bf16 become every second of 32: one row of a pair. The other may be another thread's at this moment.
static inline void store_halves(bf16* pairs, const bf16* from, bool odd) {
  for (int i = 0; i < 16; i++) pairs[2 * i + odd] = from[i];
}

// How many results fit into 16 registers.
constexpr int STREAM = 16;  // outputs that are read together in a product with a weight
constexpr int MAX_TILE_ROWS = 4, SCORE_PAGES = 1, VALUE_VECTORS = 1;
