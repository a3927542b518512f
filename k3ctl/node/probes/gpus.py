"""NVIDIA GPUs as the driver sees them, through NVML."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from k3ctl.node.probes.source import CannotTell

_LIBRARY = "libnvidia-ml.so.1"


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """Request: nvml_library_path, a folder or file, empty for the system's own library.

    Memory in bytes, temperature in Celsius, power in mW. A field that this driver cannot tell is None and named in
    `unread`; a GPU that is lost has only `index` and `error`.
    """
    _preload(request.get("nvml_library_path") or "")
    try:
        import pynvml  # noqa: PLC0415  travels inside the agent; a host without NVIDIA GPUs may lack the library
    except ImportError as error:
        raise CannotTell("pynvml is not in this agent: %s" % error) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise CannotTell("NVML does not start: %s" % _words(error)) from None
    try:
        unread: dict[str, str] = {}
        system = {
            "driver": _ask(pynvml, unread, "driver", pynvml.nvmlSystemGetDriverVersion),
            "cuda": _cuda(_ask(pynvml, unread, "cuda", pynvml.nvmlSystemGetCudaDriverVersion)),
        }
        count = pynvml.nvmlDeviceGetCount()
        gpus = [_gpu(pynvml, index) for index in range(count)]
        return dict(system, count=count, gpus=gpus, unread=unread)
    except pynvml.NVMLError as error:
        raise CannotTell("NVML: %s" % _words(error)) from None
    finally:
        pynvml.nvmlShutdown()


def _preload(path: str) -> None:
    """Load the named library first: the dynamic linker then answers pynvml's own load with it, by its soname."""
    if not path:
        return
    library = os.path.join(path, _LIBRARY) if os.path.isdir(path) else path
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise CannotTell("NVML library %s does not load: %s" % (library, error)) from None


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _cuda(version: int | None) -> str | None:
    return None if version is None else "%d.%d" % (version // 1000, version % 1000 // 10)


def _ask(pynvml: Any, unread: dict[str, str], field: str, function: Any, *arguments: Any) -> Any:
    """One value, or None with the reason in `unread`. A lost GPU is not a missing value: that error goes up."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        unread[field] = _words(error)
        return None


def _gpu(pynvml: Any, index: int) -> dict[str, Any]:
    try:
        return _fields(pynvml, index, pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        return {"index": index, "error": _words(error)}


def _fields(pynvml: Any, index: int, handle: Any) -> dict[str, Any]:
    unread: dict[str, str] = {}

    def ask(field: str, function: Any, *arguments: Any) -> Any:
        return _ask(pynvml, unread, field, function, handle, *arguments)

    memory = ask("memory", pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlMemory_v2)
    capability = ask("capability", pynvml.nvmlDeviceGetCudaComputeCapability)
    ecc = ask("ecc", pynvml.nvmlDeviceGetEccMode)
    utilisation = ask("utilisation", pynvml.nvmlDeviceGetUtilizationRates)
    pci = ask("bus_id", pynvml.nvmlDeviceGetPciInfo)
    return {
        "index": index,
        "name": ask("name", pynvml.nvmlDeviceGetName),
        "uuid": ask("uuid", pynvml.nvmlDeviceGetUUID),
        "serial": ask("serial", pynvml.nvmlDeviceGetSerial),
        "bus_id": _text(pci.busId) if pci else None,
        "capability": "%d.%d" % tuple(capability) if capability else None,
        "memory_bytes": memory.total if memory else None,
        "memory_used_bytes": memory.used if memory else None,
        "ecc_on": bool(ecc[0]) if ecc else None,
        "ecc_pending_on": bool(ecc[1]) if ecc else None,
        "ecc_uncorrected": ask(
            "ecc_uncorrected",
            pynvml.nvmlDeviceGetTotalEccErrors,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
        "temperature_c": ask("temperature_c", pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        "power_mw": ask("power_mw", pynvml.nvmlDeviceGetPowerUsage),
        "utilisation_percent": utilisation.gpu if utilisation else None,
        "unread": unread,
    }


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
