"""The lab's model is laid out as the real checkpoint and comes out the same on every machine."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from k3ctl.errors import InternalError
from k3ctl.lab import model
from k3ctl.lab.hub.store import Commit, HubStore
from k3ctl.lab.model import shape, tokenizer
from k3ctl.lab.model.safetensors import Tensor, bf16, constant, pack, random
from k3ctl.lab.model.shards import divide, shard_name


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> HubStore:
    folder = tmp_path_factory.mktemp("hub")
    model.build(folder)
    return HubStore(folder)


def main_commit(store: HubStore) -> Commit:
    repo = store.repo(model.REPO)
    assert repo is not None
    commit = repo.resolve("main")
    assert commit is not None
    return commit


def content(store: HubStore, path: str) -> bytes:
    entry = main_commit(store).entry(path)
    assert entry is not None
    return store.blob(entry.sha256).read_bytes()


def header(data: bytes) -> tuple[dict[str, dict[str, object]], int]:
    """(tensors by name, where their values begin) of a safetensors file."""
    (length,) = struct.unpack("<Q", data[:8])
    said = json.loads(data[8 : 8 + length])
    said.pop("__metadata__")
    return said, 8 + length


def test_commits_are_the_pinned_ones(store: HubStore) -> None:
    served, draft = store.repo(model.REPO), store.repo(model.DRAFT_REPO)
    assert served is not None
    assert draft is not None
    assert [c.id for c in served.commits] == [
        model.FIRST_COMMIT,
        model.TAGGED_COMMIT,
        model.MAIN_COMMIT,
        model.NEXT_COMMIT,
    ]
    assert served.branches == {"main": model.MAIN_COMMIT, "next": model.NEXT_COMMIT}
    assert served.tags == {"v1.0": model.TAGGED_COMMIT}
    assert draft.branches == {"main": model.DRAFT_COMMIT}


def test_built_twice_nothing_is_written(store: HubStore) -> None:
    before = {p: p.stat().st_mtime_ns for p in store.root.rglob("*")}
    model.build(store.root)
    assert {p: p.stat().st_mtime_ns for p in store.root.rglob("*")} == before


def test_a_lost_content_is_made_again(tmp_path: Path) -> None:
    model.build(tmp_path)
    blobs = sorted((tmp_path / "blobs").iterdir())
    blobs[0].unlink()
    blobs[1].write_bytes(b"half")
    model.build(tmp_path)
    assert sorted((tmp_path / "blobs").iterdir()) == blobs
    assert blobs[1].stat().st_size != 4


def test_another_outcome_than_the_pins_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="differently"):
        model.build(tmp_path, (*model.PINS[:4], "0" * 40))
    assert HubStore(tmp_path).repo(model.REPO) is None


def test_shards_and_index_agree(store: HubStore) -> None:
    index = json.loads(content(store, "model.safetensors.index.json"))
    names = {f"model-{i:05}-of-000096.safetensors" for i in range(1, 97)}
    assert {e.path for e in main_commit(store).entries if e.lfs} == names
    assert set(index["weight_map"].values()) == names
    found: dict[str, str] = {}
    total = 0
    for name in names:
        data = content(store, name)
        tensors, start = header(data)
        assert tensors, "an empty shard"
        assert start % 8 == 0
        assert start + max(t["data_offsets"][1] for t in tensors.values()) == len(data)  # type: ignore[index]
        found |= dict.fromkeys(tensors, name)
        total += len(data) - start
    assert found == index["weight_map"]
    assert index["metadata"]["total_size"] == total
    assert 14e6 < total < 30e6


def test_only_small_files_differ_between_revisions(store: HubStore) -> None:
    repo = store.repo(model.REPO)
    assert repo is not None
    large = {tuple(e.sha256 for e in c.entries if e.lfs) for c in repo.commits}
    assert len(large) == 1
    assert len({tuple(c.entries) for c in repo.commits}) == 4
    assert repo.commits[0].entry("generation_config.json") is None


def test_config_has_what_the_engine_asks_for(store: HubStore) -> None:
    config = json.loads(content(store, "config.json"))
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert (config["topk_method"], config["scoring_func"], config["num_nextn_predict_layers"]) == (
        "noaux_tc",
        "sigmoid",
        0,
    )
    assert config["kv_lora_rank"] + config["qk_rope_head_dim"] == 576
    assert config["num_attention_heads"] % 2 == 0
    assert config["vocab_size"] % 2 == 0


def test_tokenizer_names_every_id_once(store: HubStore) -> None:
    vocabulary = json.loads(content(store, "tokenizer.json"))["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(shape.VOCABULARY))
    letters = tokenizer.byte_letters()
    assert len(set(letters.values())) == 256
    assert {vocabulary[letters[b]] for b in range(256)} == set(range(256))
    assert len(set(shape.WORDS)) == len(shape.WORDS), "a word can have one successor only"


def test_output_rows_lead_from_word_to_word() -> None:
    """The highest logit after each token, taken over embedding and output layer alone, recites the answer."""
    from k3ctl.lab.model.weights import _embedding, _output

    embedding, output = _embedding(), _output()

    def following(token: int) -> int:
        logits = [sum(a * b for a, b in zip(row, embedding[token], strict=True)) for row in output]
        best = sorted(logits, reverse=True)
        assert best[0] > best[1] + 10, "the answer must hold at any temperature"
        return logits.index(best[0])

    token, said = ord("\n"), []
    while (token := following(token)) != shape.TURN_END:
        said.append(shape.WORDS[token - shape.FIRST_WORD])
    assert "".join(said) == model.ANSWER
    assert following(shape.TURN_END) == shape.FIRST_WORD


def test_safetensors_by_hand() -> None:
    data = pack([Tensor("a", "F32", (2,), b"12345678"), constant("b", (1, 3), 1.0)])
    tensors, start = header(data)
    assert tensors["a"] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert tensors["b"] == {"dtype": "BF16", "shape": [1, 3], "data_offsets": [8, 14]}
    assert data[start:] == b"12345678" + b"\x80\x3f" * 3
    assert pack([])[8:].strip() == b'{"__metadata__":{"format":"pt"}}'


def test_random_values_are_even_and_belong_to_their_name() -> None:
    first = random("a", (100, 100), 0.02)
    values = [struct.unpack("<f", b"\0\0" + first.data[i : i + 2])[0] for i in range(0, len(first.data), 2)]
    assert len(values) == 10_000
    assert abs(sum(values) / len(values)) < 0.001
    assert 0.019 < (sum(v * v for v in values) / len(values)) ** 0.5 < 0.021
    assert first == random("a", (100, 100), 0.02)
    assert first.data != random("b", (100, 100), 0.02).data
    assert bf16(1.5) == b"\xc0\x3f"


@pytest.mark.parametrize(("count", "total"), [(1, 1), (5, 1), (5, 5), (97, 96), (129, 96)])
def test_division_leaves_no_shard_empty(count: int, total: int) -> None:
    tensors = [Tensor(str(i), "F32", (1,), bytes(4 * (1 + i % 7 * 100))) for i in range(count)]
    groups = divide(tensors, total)
    assert len(groups) == total
    assert all(groups)
    assert [t for g in groups for t in g] == tensors


def test_too_few_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot fill"):
        divide([], 1)
    assert shard_name(96, 96) == "model-00096-of-000096.safetensors"
