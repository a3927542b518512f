"""A byte-level tokenizer: 256 bytes, four special tokens and the words of the one answer; nothing is ever merged."""

from __future__ import annotations

import json
from typing import Any

from k3ctl.lab.model import shape as s

CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|turn_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def byte_letters() -> dict[int, str]:
    """The letter that byte-level BPE writes for each byte: printable ones stand for themselves, others from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def tokenizer_json() -> bytes:
    """tokenizer.json. Unused ids up to the size of the vocabulary have names too, so that every id can be decoded."""
    letters = byte_letters()
    vocabulary = {letters[b]: b for b in range(s.BYTES)} | dict(s.SPECIAL)
    for place, word in enumerate(s.WORDS):
        vocabulary["".join(letters[b] for b in word.encode())] = s.FIRST_WORD + place
    taken = set(vocabulary.values())
    vocabulary |= {f"<|unused_{i}|>": i for i in range(s.VOCABULARY) if i not in taken}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    whole: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": name, **flags} for name, i in s.SPECIAL.items()],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(sorted(vocabulary.items(), key=lambda item: item[1])),
            "merges": [],
        },
    }
    return (json.dumps(whole, indent=1, ensure_ascii=False) + "\n").encode()


def tokenizer_config(template: str = CHAT_TEMPLATE) -> bytes:
    """tokenizer_config.json."""
    said = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|turn_end|>",
        "pad_token": "<|pad|>",
        "model_max_length": s.POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    return (json.dumps(said, indent=2) + "\n").encode()
