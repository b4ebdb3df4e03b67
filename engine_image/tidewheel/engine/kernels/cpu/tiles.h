// AMX: eight registers of up to 16 rows of 64 bytes; a product of two is 32 inputs deep.
#pragma once
#ifdef __AMX_BF16__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

// Linux gives the tiles' state to a process that asks for it; threads inherit the right.
inline const bool has_tiles = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// While it lives its thread may use tiles, if there are `shapes`; after it none is left to save at a switch of threads.
struct Tiles {
  const bool are_used;
  explicit Tiles(const TileShapes* shapes) : are_used(shapes) {
    if (are_used) _tile_loadconfig(shapes);
  }
  ~Tiles() {
    if (are_used) _tile_release();
  }
};
#endif
