"""C++ kernels for CPUs with AVX512_BF16 or AVX2, called through ctypes."""
