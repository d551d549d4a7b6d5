"""Kernel families: each turns a body and one of its schedule rows into Kernel IR."""
