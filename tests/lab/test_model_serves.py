"""The lab's model and serving environment, fetched from the hub, serve over two hosts: without any phase of `up`."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from typing import Any

import pytest

from k3ctl.commands.session import load_plan
from k3ctl.fanout import each
from k3ctl.lab.model import ANSWER
from k3ctl.lab.process import Ended
from k3ctl.launch.engines import traits_of
from k3ctl.plan import NodePlan, Plan
from tests.lab.conftest import MachineLab, Maker

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]
KEY = "sk-of-the-test"
LOG = "/var/log/k3serve.log"

FETCH = """
import hashlib, json, os, subprocess, sys, urllib.request
hub, archive, digest, path, repo, commit, weights = sys.argv[1:]
os.makedirs(path)
tar = subprocess.Popen(["tar", "-C", path, "--zstd", "-xf", "-"], stdin=subprocess.PIPE)
seen = hashlib.sha256()
with urllib.request.urlopen(archive) as body:
    while chunk := body.read(1 << 20):
        seen.update(chunk)
        tar.stdin.write(chunk)
tar.stdin.close()
assert tar.wait() == 0 and seen.hexdigest() == digest, seen.hexdigest()
with urllib.request.urlopen(f"{hub}/api/models/{repo}/tree/{commit}?recursive=true") as body:
    files = [e for e in json.load(body) if e["type"] == "file"]
for entry in files:
    target = os.path.join(weights, entry["path"])
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with urllib.request.urlopen(f"{hub}/{repo}/resolve/{commit}/{entry['path']}") as body:
        content = body.read()
    assert "lfs" not in entry or hashlib.sha256(content).hexdigest() == entry["lfs"]["oid"], entry
    open(target, "wb").write(content)
print(len(files))
"""

ASK = """
import sys, urllib.request
url, key, body = sys.argv[1:]
headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
request = urllib.request.Request(url, body.encode() or None, headers)
try:
    answer = urllib.request.urlopen(request, timeout=60)
except urllib.error.HTTPError as error:
    answer = error
except OSError:
    sys.exit(7)
print(answer.status)
print(answer.read().decode())
"""


def python(lab: MachineLab, node: str, script: str, *words: str, timeout_s: float = 120.0) -> Ended:
    """Run a script with the node's own Python."""
    return lab.ssh(node, shlex.join(["python3", "-c", script, *words]), timeout_s=timeout_s)


@pytest.fixture(scope="module")
def served(new_inventory: Maker) -> Iterator[tuple[MachineLab, Plan]]:
    """Two machines with the environment and the model on their disks, and vLLM started on both."""
    lab = new_inventory("s", hub=True)
    created = lab.command("create", "{}", timeout_s=900)
    assert created.ok, created.stderr
    _, plan, _ = load_plan(str(lab.inventory))
    hub, model = plan.model.endpoint, plan.model
    words = (hub, plan.runtime.url, plan.runtime.digest, plan.runtime.path, model.repo, model.commit, model.path)
    got = each(lab.nodes, lambda node: python(lab, node, FETCH, *words, timeout_s=400)).all()
    for ended in got.values():
        assert ended.ok, ended.stderr
        assert int(ended.stdout) > 96
    for node in plan.nodes:
        started = lab.ssh(node.name, start_command(lab, plan, node))
        assert started.ok, started.stderr
    began = time.monotonic()
    wait_healthy(lab, plan)
    print(f"healthy {time.monotonic() - began:.0f} s after the start")
    yield lab, plan
    # 1.5 GB in 20,000 files a machine: with a busy disk longer than `lab destroy` is given by the tests
    gone = f"systemctl kill -s KILL k3serve; rm -rf {shlex.quote(plan.runtime.path)}"
    each(lab.nodes, lambda name: lab.ssh(name, gone, timeout_s=600))


def start_command(lab: MachineLab, plan: Plan, node: NodePlan) -> str:
    """systemd-run of the rank as the plan has it, with the interface of its cluster address."""
    links = json.loads(lab.ssh(node.name, "ip -j -4 address").stdout)
    (interface,) = (k["ifname"] for k in links if any(a["local"] == node.address for a in k["addr_info"]))
    traits = traits_of(plan.engine)
    environment = {**node.engine_env, **{k: v.format(interface=interface) for k, v in traits.interface_env}}
    if node.rank == 0:
        environment[traits.api_key_env] = KEY
    environment["PATH"] = f"{plan.runtime.bin}:/usr/sbin:/usr/bin:/sbin:/bin"
    return shlex.join(
        [
            "systemd-run",
            "--unit=k3serve",
            *(f"--property=Standard{stream}=append:{LOG}" for stream in ("Output", "Error")),
            *(f"--setenv={k}={v}" for k, v in environment.items()),
            *node.engine_argv,
        ]
    )


def ask(lab: MachineLab, plan: Plan, path: str, *, key: str = KEY, body: Any = None) -> tuple[int, str]:
    """(status, body) of a request on the head; (0, '') when nothing listens."""
    url = f"http://127.0.0.1:{plan.endpoint_port}{path}"
    ended = python(lab, plan.head.name, ASK, url, key, json.dumps(body) if body is not None else "")
    if ended.status == 7:
        return 0, ""
    assert ended.ok, ended.stderr
    status, _, text = ended.stdout.partition("\n")
    return int(status), text


def wait_healthy(lab: MachineLab, plan: Plan, timeout_s: float = 600.0) -> None:
    """Until the head's API listens; fails at once when a rank is gone."""
    end = time.monotonic() + timeout_s
    while ask(lab, plan, "/health")[0] != 200:
        for name in lab.nodes:
            state = lab.ssh(name, "systemctl is-active k3serve").stdout.strip()
            assert state == "active", lab.ssh(name, f"tail -40 {LOG}").stdout
        assert time.monotonic() < end, lab.ssh(plan.head.name, f"tail -40 {LOG}").stdout
        time.sleep(2)


def test_the_model_says_its_sentence(served: tuple[MachineLab, Plan]) -> None:
    """Right only when every rank has its part of the embedding and of the output layer."""
    lab, plan = served
    for content in ("Who are you?", "And again, with feeling: who?"):
        body = {"model": plan.model.served_name, "messages": [{"role": "user", "content": content}], "max_tokens": 40}
        status, text = ask(lab, plan, "/v1/chat/completions", body=body)
        assert status == 200, text
        (choice,) = json.loads(text)["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop")


def test_it_streams(served: tuple[MachineLab, Plan]) -> None:
    lab, plan = served
    body = {"model": plan.model.served_name, "prompt": "x", "max_tokens": 40, "stream": True}
    status, text = ask(lab, plan, "/v1/completions", body=body)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert (status, lines[-1]) == (200, "[DONE]")
    said = [json.loads(line)["choices"][0]["text"] for line in lines[:-1]]
    assert len(said) > 5
    assert "".join(said) == ANSWER


@pytest.mark.parametrize("key", ["", "sk-wrong"])
def test_no_answer_without_the_key(served: tuple[MachineLab, Plan], key: str) -> None:
    lab, plan = served
    assert ask(lab, plan, "/v1/models", key=key)[0] == 401
    assert ask(lab, plan, "/v1/models")[0] == 200


def test_a_bad_request_is_refused(served: tuple[MachineLab, Plan]) -> None:
    lab, plan = served
    status, text = ask(lab, plan, "/v1/chat/completions", body={"model": plan.model.served_name, "messages": "no"})
    assert status in (400, 422), text


def test_both_ranks_loaded_into_little_memory(served: tuple[MachineLab, Plan]) -> None:
    """vLLM shows progress of loading on rank 0 alone; the others say when they have done it."""
    lab, plan = served
    for node in plan.nodes:
        log = lab.ssh(node.name, f"cat {LOG}").stdout
        assert "Loading weights took" in log
        assert ("96/96" in log) == (node.rank == 0)
        processes = lab.ssh(node.name, "ps -eo rss=,args= | grep -E '[V]LLM::|[v]llm serve'").stdout.splitlines()
        (worker,) = (line for line in processes if "VLLM::Worker" in line)
        resident = int(worker.split()[0]) * 1024
        print(f"{node.name}:", *(" ".join(line.split()[:4]) for line in processes), sep="\n  ")
        assert 0 < resident < 1_200_000_000, "resident bytes of a worker"
