"""All checks, in gate order: what a check needs comes before it."""

from __future__ import annotations

from k3ctl.preflight.check import Check
from k3ctl.preflight.checks import cluster, disk, gpus, hcas, host, limits, network, pairs, probe

CHECKS: tuple[Check, ...] = (
    *probe.CHECKS,
    *host.CHECKS,
    *limits.CHECKS,
    *disk.CHECKS,
    *gpus.CHECKS,
    *hcas.CHECKS,
    *network.CHECKS,
    *pairs.CHECKS,
    *cluster.CHECKS,
)
