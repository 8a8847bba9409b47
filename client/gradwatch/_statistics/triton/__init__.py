"""The CUDA path: what is launched, on which elements, and the kernels themselves."""
