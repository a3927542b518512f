"""The lab's models: lab/kimi-k3-mini, a small real model laid out as the real checkpoint, and its draft.

`build` puts them into a hub folder. The same bytes, and so the same commits, come out on every machine.
"""

from __future__ import annotations

from pathlib import Path

from k3ctl.errors import InternalError, Problem
from k3ctl.lab.hub.store import Commit, Entry, HubStore, Repo, make_commit
from k3ctl.lab.model import config, shape, shards, texts, tokenizer, weights
from k3ctl.lab.model.safetensors import Tensor, constant, pack, random
from k3ctl.lab.model.shape import ANSWER

REPO = "lab/kimi-k3-mini"
DRAFT_REPO = "lab/kimi-k3-mini-draft"
FIRST_COMMIT = "1bde1508d1fef641635c705669d86482f7c2d9ee"
TAGGED_COMMIT = "5c57f68ab7492ede911f2680dfb06a2dff2e1805"
MAIN_COMMIT = "4d2b829cdb7a872732d67eaa2861904e48426baa"
NEXT_COMMIT = "1dd024064066b138ed40b22a25719b9533fbe058"
DRAFT_COMMIT = "1f8cf15149f07ca04e56981fcf45e08abf53cb8e"
PINS = (FIRST_COMMIT, TAGGED_COMMIT, MAIN_COMMIT, NEXT_COMMIT, DRAFT_COMMIT)

__all__ = [
    "ANSWER",
    "DRAFT_COMMIT",
    "DRAFT_REPO",
    "FIRST_COMMIT",
    "MAIN_COMMIT",
    "NEXT_COMMIT",
    "REPO",
    "TAGGED_COMMIT",
    "build",
]

Step = tuple[str, str, dict[str, bytes]]  # title, date, files that it changes

_DRAFT_HIDDEN, _DRAFT_HEADS, _DRAFT_WIDTH = 64, 2, 128


def build(folder: Path, pins: tuple[str, ...] = PINS) -> None:
    """Put both repositories into the hub folder; does nothing when they are there and whole.

    Raises InternalError when the commits are not the ones that this module names (a profile pins them).
    """
    store = HubStore(folder)
    if _is_whole(store, REPO, NEXT_COMMIT) and _is_whole(store, DRAFT_REPO, DRAFT_COMMIT):
        return
    served, draft = served_repo(store), draft_repo(store)
    found = tuple(c.id for c in (*served.commits, *draft.commits))
    if found != pins:
        raise InternalError(
            Problem(
                what="the lab's model came out differently from what its profile pins",
                found=", ".join(found),
                expected=", ".join(pins),
                fix="put these commits into k3ctl/lab/model/__init__.py and the model profile",
            )
        )
    store.save(served)
    store.save(draft)


def served_repo(store: HubStore) -> Repo:
    """The served model's repository with four revisions. Only small files differ between them."""
    made = shards.files(list(weights.tensors()), shape.SHARDS)
    base = {
        **made,
        ".gitattributes": texts.ATTRIBUTES,
        "README.md": texts.readme(REPO, "1.0"),
        "config.json": config.served(),
        "docs/architecture.md": texts.ARCHITECTURE,
        "tokenizer.json": tokenizer.tokenizer_json(),
        "tokenizer_config.json": tokenizer.tokenizer_config(),
    }
    steps: tuple[Step, ...] = (
        ("Initial release", "2026-11-02T08:00:00.000Z", {}),
        ("Add generation_config.json", "2026-11-05T08:00:00.000Z", {"generation_config.json": config.generation()}),
        ("Clearer README", "2026-11-16T08:00:00.000Z", {"README.md": texts.readme(REPO, "1.1")}),
        ("Next README", "2026-11-23T08:00:00.000Z", {"README.md": texts.readme(REPO, "1.2")}),
    )
    commits = _history(store, base, steps)
    branches = {"main": commits[2].id, "next": commits[3].id}
    return Repo(REPO, "public", branches, {"v1.0": commits[1].id}, commits)


def draft_repo(store: HubStore) -> Repo:
    """The draft model's repository: one revision, few files."""
    base = {
        ".gitattributes": texts.ATTRIBUTES,
        "README.md": texts.readme(DRAFT_REPO, "1.0"),
        "config.json": config.draft(_DRAFT_HIDDEN, _DRAFT_HEADS, _DRAFT_WIDTH),
        "model.safetensors": pack(_draft_tensors()),
        "tokenizer.json": tokenizer.tokenizer_json(),
        "tokenizer_config.json": tokenizer.tokenizer_config(),
    }
    commits = _history(store, base, (("Initial release", "2026-11-02T09:00:00.000Z", {}),))
    return Repo(DRAFT_REPO, "public", {"main": commits[0].id}, {}, commits)


def _history(store: HubStore, base: dict[str, bytes], steps: tuple[Step, ...]) -> tuple[Commit, ...]:
    """Commits one upon the other; each step replaces or adds files."""
    entries: dict[str, Entry] = {path: store.add(path, content) for path, content in base.items()}
    commits: list[Commit] = []
    for title, date, changed in steps:
        entries |= {path: store.add(path, content) for path, content in changed.items()}
        commits.append(make_commit(commits[-1].id if commits else "", title, date, entries.values()))
    return tuple(commits)


def _draft_tensors() -> list[Tensor]:
    wide, hidden = (_DRAFT_WIDTH, _DRAFT_HIDDEN), (_DRAFT_HIDDEN, _DRAFT_HIDDEN)
    layer = "model.layers.0"
    return [
        random("model.embed_tokens.weight", (shape.VOCABULARY, _DRAFT_HIDDEN), 1.0),
        constant(f"{layer}.input_layernorm.weight", (_DRAFT_HIDDEN,), 1.0),
        *(random(f"{layer}.self_attn.{p}_proj.weight", hidden, 0.02) for p in "qkvo"),
        constant(f"{layer}.post_attention_layernorm.weight", (_DRAFT_HIDDEN,), 1.0),
        random(f"{layer}.mlp.gate_proj.weight", wide, 0.02),
        random(f"{layer}.mlp.up_proj.weight", wide, 0.02),
        random(f"{layer}.mlp.down_proj.weight", wide[::-1], 0.02),
        constant("model.norm.weight", (_DRAFT_HIDDEN,), 1.0),
        random("lm_head.weight", (shape.VOCABULARY, _DRAFT_HIDDEN), 0.02),
    ]


def _is_whole(store: HubStore, name: str, newest: str) -> bool:
    repo = store.repo(name)
    if repo is None or not repo.commits or repo.commits[-1].id != newest:
        return False
    blobs = {e.sha256: e.size for c in repo.commits for e in c.entries}
    return all(store.blob(b).is_file() and store.blob(b).stat().st_size == size for b, size in blobs.items())
