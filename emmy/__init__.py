"""Emmy: an optimizing compiler from PyTorch to CUDA that keeps every alternative in an e-graph."""
