"""Kernels are compiled and interpreted here without a GPU, see fastar/kernels."""

import os

os.environ.setdefault("FASTAR_TRITON", "1")
