"""`python -m tests.lab.provision_driver INVENTORY STATE`: provision in a process of its own, to be killed by a test."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.lab.provision_fixtures import bench_of

if __name__ == "__main__":
    bench = bench_of(Path(sys.argv[1]), Path(sys.argv[2]))
    outcome = bench.provision(only=("provision",))
    sys.stdout.write(outcome.status + "\n")
