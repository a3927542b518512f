"""The burn-in's rank: run by torchrun with the serving environment's own Python. Needs torch and nothing of ours.

All-reduce and a ring of send and receive at several sizes, each checked element by element, then timed. What this rank
has reached is kept in rank-<global rank>.json all the time, so that a hang says where.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys
import time
from typing import Any, Callable, Dict, List


class Wrong(Exception):
    """The result of a collective is not what it must be."""


def main() -> int:
    """Run all steps; 0 when every one was right."""
    job = json.loads(os.environ["K3CTL_BURNIN"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    path = os.path.join(job["folder"], "rank-%d.json" % rank)
    report = {"rank": rank, "node_rank": job["node_rank"], "host": socket.gethostname(), "world": world,
              "backend": job["backend"], "stage": "import", "error": "", "rates": []}  # fmt: skip
    try:
        Worker(job, rank, world, report, path).run()
    except Wrong as error:
        report["error"] = "wrong result in %s: %s" % (report["stage"], error)
        report["wrong"] = True
    except Exception as error:
        text = str(error).strip().splitlines()
        report["error"] = "%s in %s: %s" % (type(error).__name__, report["stage"], (text or ["no text"])[0][:300])
    save(path, report)
    return 1 if report["error"] else 0


def save(path: str, report: Dict[str, Any]) -> None:
    """Write the report in one move."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.replace(path + ".new", path)


class Worker:
    """One rank of the job."""

    def __init__(self, job: Dict[str, Any], rank: int, world: int, report: Dict[str, Any], path: str) -> None:
        self.job, self.rank, self.world, self.report, self.path = job, rank, world, report, path

    def stage(self, name: str) -> None:
        """Note what is done now."""
        self.report["stage"] = name
        save(self.path, self.report)

    def run(self) -> None:
        """Every step, in order."""
        self.stage("import")
        import torch  # noqa: PLC0415 - a failing import is a finding too
        import torch.distributed as dist  # noqa: PLC0415

        self.torch, self.dist = torch, dist
        self.report["torch"] = torch.__version__
        self.device = "cpu"
        if self.job["backend"] == "nccl":
            local = int(os.environ["LOCAL_RANK"])
            torch.cuda.set_device(local)
            self.device = "cuda:%d" % local
        self.stage("connect")
        dist.init_process_group(self.job["backend"], timeout=datetime.timedelta(seconds=self.job["timeout_s"]))
        for count in self.job["sizes"]:
            self.stage("all-reduce of %d bytes" % count)
            self.all_reduce(count)
            if self.world > 1:
                self.stage("send and receive of %d bytes" % count)
                self.ring(count)
        self.stage("barrier")
        dist.barrier()
        dist.destroy_process_group()
        self.stage("done")

    def all_reduce(self, count: int) -> None:
        """Sum over all ranks of rank+1 times a pattern; small whole numbers, so that the sum is exact."""
        pattern = self.pattern(count)
        factor = self.world * (self.world + 1) // 2

        def once() -> Any:
            tensor = pattern * (self.rank + 1)
            self.dist.all_reduce(tensor)
            return tensor

        self.check(once(), pattern * factor)
        # Bus bandwidth: what each link carries, comparable over world sizes (NVIDIA nccl-tests, PERFORMANCE.md).
        self.time("all-reduce", count, once, 2.0 * (self.world - 1) / self.world)

    def ring(self, count: int) -> None:
        """Each rank sends its own pattern to the next one and receives from the one before."""
        following, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        outgoing = self.pattern(count) + self.rank
        incoming = self.torch.zeros_like(outgoing)

        def once() -> Any:
            operations = [
                self.dist.P2POp(self.dist.isend, outgoing, following),
                self.dist.P2POp(self.dist.irecv, incoming, before),
            ]
            for request in self.dist.batch_isend_irecv(operations):
                request.wait()
            return incoming

        self.check(once(), self.pattern(count) + before)
        self.time("send-receive", count, once, 1.0)

    def pattern(self, count: int) -> Any:
        """`count` bytes of float32 whole numbers 0..16."""
        return (self.torch.arange(max(1, count // 4), device=self.device) % 17).to(self.torch.float32)

    def check(self, found: Any, expected: Any) -> None:
        """Every element equal, or Wrong with the first that is not."""
        different = (found != expected).nonzero()
        if len(different):
            at = int(different[0])
            raise Wrong(
                "element %d is %g, expected %g (%d of %d differ)"
                % (at, float(found[at]), float(expected[at]), len(different), len(expected))
            )

    def time(self, name: str, count: int, once: Callable[[], Any], factor: float) -> None:
        """Median of several rounds, as bytes a second."""
        taken: List[float] = []
        for _ in range(self.job["rounds"]):
            self.dist.barrier()
            began = time.perf_counter()
            once()
            if self.device != "cpu":
                self.torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        median = sorted(taken)[len(taken) // 2]
        self.report["rates"].append(
            {"op": name, "bytes": count, "seconds": median, "bytes_per_second": factor * count / median}
        )


if __name__ == "__main__":
    sys.exit(main())
