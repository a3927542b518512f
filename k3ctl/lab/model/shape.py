"""The shape of the lab's model: K3's kind (MLA attention, routed experts, dense first layer), small enough for a CPU.

The numbers of the attention stay as large as they are since the CPU kernel of MLA is written for 512 + 64 values a
token. 7.2 million parameters.
"""

from __future__ import annotations

LAYERS = 4
HIDDEN = 256
HEADS = 4
Q_RANK = 96
KV_RANK = 512
ROPE = 64
NOPE = 128
VALUE = 128
DENSE = 1024
EXPERT = 128
EXPERTS = 8
EXPERTS_PER_TOKEN = 2
VOCABULARY = 320
POSITIONS = 4096
SHARDS = 96
ROPE_THETA = 10000.0
EPSILON = 1e-6

BYTES = 256  # tokens 0..255 are the bytes themselves
END, TURN, TURN_END, PAD = 256, 257, 258, 259
SPECIAL = {"<|end|>": END, "<|turn|>": TURN, "<|turn_end|>": TURN_END, "<|pad|>": PAD}
FIRST_WORD = 264
WORDS = (
    "Hello", " from", " kimi-k3-mini:", " every", " shard", " is", " loaded,", " all", " ranks", " agree,",
    " and", " this", " cluster", " answers.",
)  # fmt: skip
ANSWER = "".join(WORDS)
"""What the model says to everything: its output layer is made so. A wrong or missing weight says something else."""
