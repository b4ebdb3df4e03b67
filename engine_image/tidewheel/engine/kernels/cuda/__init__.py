"""Triton kernels for CUDA. They never ran on a GPU yet: only in Triton's interpreter, against the torch reference."""
