"""What the launch must know about an engine besides its argv: how its workers are called, where its API key goes."""

from __future__ import annotations

from dataclasses import dataclass

from k3ctl.errors import ConfigError, Problem


@dataclass(frozen=True)
class EngineTraits:
    """`worker_titles`: process titles (prefixes) of long-lived workers; the end of one is the end of the rank.

    `api_key_env` is read by the rank that serves the API; where the engine has no such variable, `api_key_option` names
    a YAML file with the key, which the node writes from that variable (mode 0600).
    `interface_env` names the interface of the cluster address;
    NCCL takes a prefix unless the name starts with `=`, Gloo knows no `=` (NVIDIA/nccl#177).
    """

    worker_titles: tuple[str, ...]
    api_key_env: str
    api_key_option: str = ""
    interface_env: tuple[tuple[str, str], ...] = (
        ("GLOO_SOCKET_IFNAME", "{interface}"),
        ("NCCL_SOCKET_IFNAME", "={interface}"),
        ("TP_SOCKET_IFNAME", "{interface}"),
    )


_FAMILIES = {
    # vLLM 0.32: titles seen in `ps` on a running server.
    "vllm": EngineTraits(worker_titles=("VLLM::Worker", "VLLM::EngineCore"), api_key_env="VLLM_API_KEY"),
    # SGLang 0.5.23, read in its source: setproctitle calls; the key is an option, and --config reads options from YAML.
    "sglang": EngineTraits(
        worker_titles=("sglang::scheduler", "sglang::detokenizer", "sglang::data_parallel_controller"),
        api_key_env="K3CTL_API_KEY",
        api_key_option="--config",
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
