"""Writes the safetensors format by hand: 8 bytes of header length, a JSON header, then raw little-endian values.

Format: https://github.com/huggingface/safetensors#format. The controller has no torch, and needs none for this.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Tensor:
    """A named block of values. `dtype` is BF16 or F32; `data` is row-major, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def count(self) -> int:
        """How many values it has."""
        product = 1
        for side in self.shape:
            product *= side
        return product


def pack(tensors: Iterable[Tensor]) -> bytes:
    """One file. The header is padded with spaces to a multiple of 8, so that values are aligned."""
    ordered = list(tensors)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in ordered:
        end = at + len(tensor.data)
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(t.data for t in ordered)


def bf16(value: float) -> bytes:
    """The upper half of a 32-bit float; exact for the values that the lab's model is made of."""
    return struct.pack("<f", value)[2:]


def constant(name: str, shape: tuple[int, ...], value: float) -> Tensor:
    """A BF16 tensor with one value everywhere."""
    empty = Tensor(name, "BF16", shape, b"")
    return Tensor(name, "BF16", shape, bf16(value) * empty.count)


def random(name: str, shape: tuple[int, ...], deviation: float) -> Tensor:
    """A BF16 tensor of evenly spread values with mean 0; the name is the seed.

    SHAKE-256 and integer tables make the same bytes on every machine and Python, and 14 MB in well under a second.
    """
    low, high = _tables(deviation)
    count = Tensor(name, "BF16", shape, b"").count
    drawn = hashlib.shake_256(name.encode()).digest(count)
    data = bytearray(2 * count)
    data[0::2] = drawn.translate(low)
    data[1::2] = drawn.translate(high)
    return Tensor(name, "BF16", shape, bytes(data))


def signs(name: str, count: int) -> list[int]:
    """`count` values of +1 and -1; the name is the seed."""
    drawn = hashlib.shake_256(name.encode()).digest(count)
    return [1 if byte & 1 else -1 for byte in drawn]


@lru_cache(maxsize=8)
def _tables(deviation: float) -> tuple[bytes, bytes]:
    """Low and high byte of the BF16 value of each of 256 even steps between -w and w, w = deviation * sqrt(3)."""
    width = deviation * 1.75
    values = [bf16((2 * step - 255) / 255 * width) for step in range(256)]
    return bytes(v[0] for v in values), bytes(v[1] for v in values)
