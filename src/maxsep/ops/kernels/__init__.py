"""Triton programs. They import triton, so nothing imports them before a kernel is launched."""
