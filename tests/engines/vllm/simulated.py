"""A CUDA platform of vLLM that answers from a table, so that its configuration can be built without a GPU."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

FLASHMLA = "vllm.third_party.flashmla.flash_mla_interface"  # generated for CUDA builds only


class _Compiled(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Hollow modules in place of vLLM's compiled ones, and of what the CPU builds lack. Asked last, so never in the way
    of a file that is there.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        last = name.rpartition(".")[2]
        if name.startswith("vllm.") and last.startswith("_") and "C" in last:
            return importlib.util.spec_from_loader(name, self)
        if name == FLASHMLA:
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == FLASHMLA:
            module.__getattr__ = _function  # type: ignore[method-assign]


def _function(name: str) -> Any:
    """Anything that is imported from a hollow module."""
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})  # a class: some stand in annotations


def _operators() -> None:
    """Compiled operators are not there; those that only say what a GPU supports say yes."""
    import torch

    class Operators(type(torch.ops._C)):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            if "support" in name:
                return lambda *_: True
            return super().__getattr__(name)

    for name in ("_C", "_moe_C"):
        torch.ops.__dict__[name] = Operators(name)


class Simulation:
    """Makes `current_platform` a CUDA platform whose GPU can be chosen once, before the first configuration."""

    def __init__(self) -> None:
        sys.meta_path.append(_Compiled())
        _operators()
        platforms = importlib.import_module("vllm.platforms")
        cuda = importlib.import_module("vllm.platforms.cuda")
        self._platform = _platform(cuda.NonNvmlCudaPlatform)
        platforms._current_platform = self._platform()

    def become(self, gpu: dict[str, Any]) -> None:
        """`gpu`: name, compute capability as '9.0', memory in bytes, count in one node."""
        from vllm.platforms.interface import DeviceCapability

        major, _, minor = str(gpu["compute"]).partition(".")
        self._platform.capability = DeviceCapability(int(major), int(minor))
        self._platform.gpu = gpu


def _platform(base: Any) -> Any:
    """What would be asked of the driver stands in `gpu` and `capability`; until they are chosen, asking is an error."""

    class Simulated(base):  # type: ignore[misc]
        capability: Any = None
        gpu: dict[str, Any] | None = None

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return cls.capability

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return str(cls._gpu()["name"])

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return int(cls._gpu()["memory"])

        @classmethod
        def device_count(cls) -> int:
            return int(cls._gpu()["count"])

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 132

        @classmethod
        def get_cuda_runtime_major(cls) -> int:
            return 13

        @classmethod
        def check_if_supports_dtype(cls, dtype: object) -> None:
            return None

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

        @classmethod
        def import_kernels(cls) -> None:
            return None

        @classmethod
        def _gpu(cls) -> dict[str, Any]:
            if cls.gpu is None:
                raise RuntimeError("asked for a GPU before one was chosen")
            return cls.gpu

    return Simulated
