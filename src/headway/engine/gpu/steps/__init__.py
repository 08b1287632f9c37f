"""Steps on a GPU, over its kernels: the decoder, its inputs and graphs, adapters, sampling."""
