"""Kernel IR executed on the CPU, as an oracle and a sanitizer: `simulate(kernel, target, arrays, sizes, results)`."""

from emmy.codegen.simulate.counters import Counters
from emmy.codegen.simulate.findings import Finding
from emmy.codegen.simulate.run import Simulation, simulate

__all__ = ["Counters", "Finding", "Simulation", "simulate"]
