"""Fused kernels for NVIDIA GPUs, in Triton. Nothing here is imported before `availability` has said yes."""
