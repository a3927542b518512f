"""What the launch must know about an engine besides its argv: how its workers are called, where its API key goes."""

from __future__ import annotations

from dataclasses import dataclass

from k3ctl.errors import ConfigError, Problem


@dataclass(frozen=True)
class EngineTraits:
    """`worker_titles`: process titles (prefixes) of long-lived workers; the end of one is the end of the rank.

    `api_key_env` is read by the rank that serves the API; where the engine has no such variable, `api_key_option` names
    a YAML file with the key, which the node writes from that variable (mode 0600) and keeps out of the log.
    `grace_s`: seconds from SIGTERM to SIGKILL. All ranks get both at the same time.
    `interface_env` names the interface of the cluster address;
    NCCL takes a prefix unless the name starts with `=`, Gloo knows no `=` (NVIDIA/nccl#177).
    """

    worker_titles: tuple[str, ...]
    api_key_env: str
    api_key_option: str = ""
    # vLLM aborts its requests at once and ends in 2 s; a worker that hangs in a collective holds it up for 12 s
    # (measured).
    grace_s: float = 5.0
    interface_env: tuple[tuple[str, str], ...] = (
        ("GLOO_SOCKET_IFNAME", "{interface}"),
        ("NCCL_SOCKET_IFNAME", "={interface}"),
        ("TP_SOCKET_IFNAME", "{interface}"),
    )


_FAMILIES = {
    # vLLM 0.32: titles seen in `ps` on a running server.
    "vllm": EngineTraits(worker_titles=("VLLM::Worker", "VLLM::EngineCore"), api_key_env="VLLM_API_KEY"),
    # SGLang 0.5.17 to 0.5.23, read in their source: setproctitle calls; the key is an option, --config reads options
    # from YAML, and the whole configuration is logged with the key in it. Node 0 looks for SIGTERM every 5 s, tells
    # the schedulers of all nodes to end and gives them 15 s; other nodes only wait for that, and since 0.5.21 ignore
    # SIGTERM. SIGKILL in the middle of it is how GPU memory stays taken.
    "sglang": EngineTraits(
        worker_titles=("sglang::scheduler", "sglang::detokenizer", "sglang::data_parallel_controller"),
        api_key_env="K3CTL_API_KEY",
        api_key_option="--config",
        grace_s=25.0,
    ),
}


def traits_of(engine: str) -> EngineTraits:
    """Traits of an engine by its profile name (`vllm-cpu` is of family vllm). ConfigError for an unknown family."""
    family = engine.split("-", maxsplit=1)[0]
    if family not in _FAMILIES:
        raise ConfigError(
            Problem(
                what=f"engine {engine} cannot be launched yet",
                found=family,
                expected=" or ".join(sorted(_FAMILIES)),
                key="engine",
                fix="choose an engine of a family that k3ctl can launch",
            )
        )
    return _FAMILIES[family]
