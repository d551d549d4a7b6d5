"""Measures CUDA kernels: reads a packet (a folder with `manifest.json`), writes one JSON line a candidate.

The package needs Python, numpy and the CUDA bindings (`pip install numpy cuda-bindings nvidia-cuda-nvrtc`).  It imports
nothing else of Emmy, and its own modules relatively: every packet, and every node of a cluster, has a copy of it under
the name `emmy_runner`.  A group of a packet holds buffers and candidates, each a list of launches over them.

- Sources are compiled ahead by threads (NVRTC releases the interpreter's lock), so that the GPU does not wait.
- A worker process a GPU does everything that touches it.  One that hangs or dies is replaced; the candidate that it was
  at is recorded as failed, with the kind of failure, and the others go on.
- A candidate is checked before it is timed: outputs are poisoned with 0xFF bytes, then compared on the GPU with the
  packet's expected values or with the results of its check candidate; operands must be as they were before.
- A sample is the time between two CUDA events around a graph of launches, each on a copy of the buffers of its own.
  L2 is cold: copies that do not exceed twice the L2 together are preceded by a read of as many other bytes.  Warm
  samples, a second figure for the best, launch on one copy again and again.
- Candidates of a batch are sampled in turns, the anchor among them, the order turned around every other round:
  3 samples each; 7 more within 1.3 of the best; 20 more within 1.05 (successive halving).
- A median below what the card needs for the bytes and operations of a group is rejected.

Times are seconds, clocks Hz, sizes bytes.
"""
