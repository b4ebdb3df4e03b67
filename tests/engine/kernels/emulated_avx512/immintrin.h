// AVX-512_BF16 for CPUs with AVX2: the instructions that the kernels use, lane by lane as Intel's manual defines them.
//
// g++ beside this file puts it before the compiler's own <immintrin.h>. Memory behind a lane that is masked off is not
// touched, as on the real thing. An instruction that is missing here does not compile: add it.
#pragma once
#include_next <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
#error "this CPU's own instructions would be hidden by their emulation"
#endif
#define __AVX512BF16__ 1

// What touches many lanes is not inlined: the tiles of a product would take minutes to compile.
namespace emulated {

using Floats = __m512;
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(64)));
typedef uint16_t HalfHalves __attribute__((vector_size(32)));

inline Floats zeros() { return Floats{}; }
inline Words bits_of(Floats v) { return (Words)v; }

template <class Function>
inline Floats each(const Function& of_lane) {
  Floats r{};
  for (int i = 0; i < 16; i++) r[i] = of_lane(i);
  return r;
}

template <class Function>
inline __mmask16 each_mask(const Function& of_lane) {
  uint32_t r = 0;
  for (int i = 0; i < 16; i++) r |= uint32_t(of_lane(i)) << i;
  return __mmask16(r);
}

inline Floats set1_ps(float x) { return x - zeros(); }
inline __m512i set1_epi32(int32_t x) { return (__m512i)(uint32_t(x) - Words{}); }
inline Floats add_ps(Floats a, Floats b) { return a + b; }
inline Floats sub_ps(Floats a, Floats b) { return a - b; }
inline Floats mul_ps(Floats a, Floats b) { return a * b; }
inline Floats div_ps(Floats a, Floats b) { return a / b; }
inline Floats fmadd_ps(Floats a, Floats b, Floats c) {
  return each([&](int i) { return __builtin_fmaf(a[i], b[i], c[i]); });
}
inline Floats fmsub_ps(Floats a, Floats b, Floats c) { return fmadd_ps(a, b, -c); }
inline float larger(float a, float b) { return a > b ? a : b; }  // the second if either is NaN
inline Floats max_ps(Floats a, Floats b) { return a > b ? a : b; }
inline float cvtss_f32(Floats a) { return a[0]; }

// By halves: 8 lanes to 8, 4 to 4, 2 to 2, 1 to 1.
template <class Function>
inline float reduce(Floats v, const Function& of_two) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] = of_two(v[i], v[i + half]);
  return v[0];
}
inline float reduce_add_ps(Floats v) { return reduce(v, [](float a, float b) { return a + b; }); }
inline float reduce_max_ps(Floats v) { return reduce(v, larger); }

inline Floats mask_mov_ps(Floats otherwise, __mmask16 lanes, Floats v) {
  return each([&](int i) { return lanes >> i & 1 ? v[i] : otherwise[i]; });
}

inline __mmask16 cmp_ps_mask(Floats a, Floats b, int how) {
  return each_mask([&](int i) { return how == _CMP_UNORD_Q ? std::isunordered(a[i], b[i]) : a[i] == b[i]; });
}
template <int HOW>
inline __mmask16 cmp(Floats a, Floats b) {
  static_assert(HOW == _CMP_UNORD_Q || HOW == _CMP_EQ_OQ);
  return cmp_ps_mask(a, b, HOW);
}

template <int HOW>
inline Floats roundscale(Floats a) {
  static_assert(HOW == (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), "only to the nearest integer");
  return each([&](int i) { return __builtin_rintf(a[i]); });
}
[[gnu::noinline]] inline Floats scalef_ps(Floats a, Floats b) {  // a * 2^floor(b)
  return each([&](int i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) return NAN;
    const float whole = std::floor(b[i]);
    return std::ldexp(a[i], whole > 400 ? 400 : whole < -400 ? -400 : int(whole));
  });
}

// Memory.
inline __m512i loadu_si512(const void* p) {
  __m512i r;
  memcpy(&r, p, sizeof r);
  return r;
}
[[gnu::noinline]] inline Floats maskz_loadu_ps(__mmask16 lanes, const void* p) {
  Floats r{};
  if (lanes == 0xffff) memcpy(&r, p, sizeof r);
  else
    for (int i = 0; i < 16; i++)
      if (lanes >> i & 1) memcpy((char*)&r + i * 4, (const char*)p + i * 4, 4);
  return r;
}
[[gnu::noinline]] inline void mask_storeu_ps(void* p, __mmask16 lanes, Floats v) {
  if (lanes == 0xffff) memcpy(p, &v, sizeof v);
  else
    for (int i = 0; i < 16; i++)
      if (lanes >> i & 1) memcpy((char*)p + i * 4, (const char*)&v + i * 4, 4);
}
[[gnu::noinline]] inline __m256i maskz_loadu_epi16(__mmask16 lanes, const void* p) {
  __m256i r{};
  if (lanes == 0xffff) memcpy(&r, p, sizeof r);
  else
    for (int i = 0; i < 16; i++)
      if (lanes >> i & 1) memcpy((char*)&r + i * 2, (const char*)p + i * 2, 2);
  return r;
}
template <class Vector>
[[gnu::noinline]] inline void store_halves_where(void* p, uint32_t lanes, Vector v) {
  for (size_t i = 0; i < sizeof v / 2; i++)
    if (lanes >> i & 1) memcpy((char*)p + i * 2, (const char*)&v + i * 2, 2);
}

// 16 and 32 bits.
inline __m512i cvtepu16_epi32(__m256i v) { return (__m512i) __builtin_convertvector((HalfHalves)v, Words); }
inline __m512i slli_epi32(__m512i v, unsigned by) { return (__m512i)((Words)v << by); }

inline uint16_t to_bf16(float x) {  // to the nearest, ties to even; denormals become zeros
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7f800000) == 0) return bits >> 16 & 0x8000;
  if (std::isnan(x)) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
[[gnu::noinline]] inline __m256i cvtneps_pbh(Floats v) {
  HalfHalves r{};
  for (int i = 0; i < 16; i++) r[i] = to_bf16(v[i]);
  return (__m256i)r;
}

// Of each 32 bits the upper half's product first, then the lower's; every denormal is a zero.
inline Floats without_denormals(Floats v) { return (Floats)((bits_of(v) & 0x7f800000) != 0 ? bits_of(v) : bits_of(v) & 0x80000000); }
[[gnu::noinline]] inline Floats dpbf16_ps(Floats sum, __m512bh a, __m512bh b) {
  const Words x = (Words)a, y = (Words)b;
  auto add = [&](Words of_a, Words of_b) {
    const Floats product = without_denormals((Floats)of_a) * without_denormals((Floats)of_b);  // exact: 8 bits each
    sum = without_denormals(without_denormals(sum) + product);
  };
  add(x & 0xffff0000, y & 0xffff0000);
  add(x << 16, y << 16);
  return sum;
}

}  // namespace emulated

#define _mm512_set1_ps emulated::set1_ps
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_add_ps emulated::add_ps
#define _mm512_sub_ps emulated::sub_ps
#define _mm512_mul_ps emulated::mul_ps
#define _mm512_div_ps emulated::div_ps
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_fmsub_ps emulated::fmsub_ps
#define _mm512_max_ps emulated::max_ps
#define _mm512_cvtss_f32 emulated::cvtss_f32
#define _mm512_reduce_add_ps emulated::reduce_add_ps
#define _mm512_reduce_max_ps emulated::reduce_max_ps
#define _mm512_mask_mov_ps emulated::mask_mov_ps
#undef _mm512_cmp_ps_mask
#undef _mm512_mask_cmp_ps_mask
#define _mm512_cmp_ps_mask(a, b, how) emulated::cmp<how>(a, b)
#define _mm512_mask_cmp_ps_mask(lanes, a, b, how) __mmask16((lanes) & emulated::cmp<how>(a, b))
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(a, how) emulated::roundscale<how>(a)
#define _mm512_scalef_ps emulated::scalef_ps
#define _mm512_loadu_si512 emulated::loadu_si512
#define _mm512_maskz_loadu_ps emulated::maskz_loadu_ps
#define _mm512_mask_storeu_ps emulated::mask_storeu_ps
#define _mm256_maskz_loadu_epi16 emulated::maskz_loadu_epi16
#define _mm256_mask_storeu_epi16 emulated::store_halves_where
#define _mm512_mask_storeu_epi16 emulated::store_halves_where
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 emulated::slli_epi32
#define _mm512_castsi512_ps(v) ((__m512)(v))
#define _mm512_cvtneps_pbh emulated::cvtneps_pbh
#define _mm512_dpbf16_ps emulated::dpbf16_ps
