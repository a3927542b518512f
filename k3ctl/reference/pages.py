"""The generated pages of docs/reference: tables from the types and profiles, with a few words around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from k3ctl.cluster import ClusterSpec
from k3ctl.plan import Plan
from k3ctl.profiles.types import Amount, Engine, Gpu, Model, Platform, Profiles, Unknown, Verdict
from k3ctl.reference import support
from k3ctl.reference.fields import cell, code, doc, nested, rows

_GENERATED = "<!-- Written by `make schema` from the code. Changes here are lost. -->"

_CLUSTER = """
# cluster.yml

The file beside `hosts.yml` in an inventory folder. It says what Ansible's own variables do not: which servers these
are, which model is served with which engine, and where things are. Three keys are required; a key that is not below
is an error, with the nearest one named. `k3ctl validate INVENTORY` says everything that is wrong at once, with file and
line. Editors complete the file with `docs/schema/cluster.schema.json`:

```yaml
# yaml-language-server: $schema=../../docs/schema/cluster.schema.json
platform: h200
model: kimi-k3
engine: vllm
```

`k3ctl plan INVENTORY --explain` shows every value with where it came from: default, profile, inventory or flag.
"""

_PROFILES = """
# Profiles

What k3ctl knows about hardware, models and engines is data: one YAML file each, below `k3ctl/profiles/`. No code knows
the name of a GPU, server, model or engine layout; names are looked up in these files.

| folder | one file is | schema |
|---|---|---|
| `gpus/` | one GPU type | `docs/schema/gpu.schema.json` |
| `platforms/` | one kind of server | `docs/schema/platform.schema.json` |
| `models/` | one model repository | `docs/schema/model.schema.json` |
| `engines/` | one serving engine, with its layouts | `docs/schema/engine.schema.json` |

## Status

Every number and every verdict carries its source and one of these words:

| status | means |
|---|---|
| `verified` | run and seen on that hardware; the source says by whom |
| `published` | somebody else's documented figure |
| `inferred` | arithmetic or analogy; the source says which |
| `unverified` | documented, and nobody known has run it |
| `simulated` | true of the lab only |

A plan takes the weakest verdict of what it is made of, and never more than `inferred` while its engine runs in a
container: k3ctl has launched none on GPUs yet. `k3ctl plan --explain` shows each part's.

## Adding one

A **platform**: write `platforms/NAME.yml`, and `gpus/GPU.yml` when its GPU has no profile yet. Then name it in
`platforms:` of the engine layouts that are known to run on it; without one the planner refuses, and says by arithmetic
how near the smallest layout comes.

A **model**: write `models/NAME.yml`. A fact that nobody has published is written as `unknown` with the key of
cluster.yml that supplies it; where it is needed, the plan is refused with that key in the message. Without
`architecture` memory is not planned, and the plan says so. Name the model in `models:` of the engine's layouts.

An **engine**, or a version or layout of one: `engines/NAME.yml`. A flag that not every version has gets an entry in
`flags:`. Its `family` must be one that k3ctl has launch and memory rules for (vllm, sglang); another family is code.

To check it:

1. `make unit` loads every profile: unknown keys, wrong types, a name that differs from its file's, a GPU without a
   profile are errors with the file, the key and, where there is one, the line.
2. `k3ctl plan INVENTORY --explain`, with an inventory that names it, shows layout, memory, sources and distances to
   what was measured; `--show 'rank 0'` the exact texts.
3. `make schema` renews these pages; [support](support.md) then has its row.
"""

_PLAN = """
# Plan

What `k3ctl plan INVENTORY -o json` prints. It is made before any host is touched: the same inventory, profiles and
flags give the same bytes. `docs/schema/plan.schema.json` is its JSON Schema.

Units: bytes are bytes, times are seconds, ports are numbers, unless a field says otherwise. Paths are those on the
nodes. Lists of nodes are in rank order; rank 0 is the head. The API key is in no field.

A plan of several replicas (`strategy.replicas`) has all nodes in one list; `replica` says whose each is.
"""

_SUPPORT = """
# Platforms and engines

What the planner chooses when cluster.yml asks for nothing but platform, model and engine: one row for every number of
nodes that an engine's profile has a layout for.

**k3ctl has not been run on any of this GPU hardware.** The status is that of the whole plan: the weakest verdict of
platform, model, engine version and layout, and never more than `inferred` where k3ctl itself has not launched the
container yet. The last column is who has run the *layout*, by whatever means. The words are explained in
[profiles](profiles.md#status).

A refusal is a row as well: the arithmetic says no, or a fact is missing.
"""

_NO_TENSORRT = """
## TensorRT-LLM

NVIDIA documents Kimi-K3 on 16 GB300 with it (TEP16 and DEP16, and TEP8 on 8), Blackwell only. There is no profile:

- It starts one process for each GPU by MPI (`srun --mpi=pmix`, `trtllm-llmapi-launch trtllm-serve`). k3ctl starts one
  process for each node with that node's rank, for which the guide names no flag of `trtllm-serve`.
- Sizes, batch and cache share stand in a YAML file beside the command line; a layout has arguments and variables only.
- What it takes of a GPU's memory before the cache is not published, so nothing could be refused by arithmetic.
"""


def cluster_page() -> str:
    """docs/reference/cluster.md."""
    return _page(_CLUSTER, *_sections(ClusterSpec, "##", set(), title="Keys"))


def profiles_page() -> str:
    """docs/reference/profiles.md."""
    seen: set[type] = set()
    parts = [_PROFILES]
    shared: tuple[type, ...] = (Amount, Unknown, Verdict)
    kinds: tuple[type, ...] = (Gpu, Platform, Model, Engine)
    for kind in kinds:
        parts += _sections(kind, "##", seen, title=kind.__name__, later=shared)
    parts.append("## Values with a source\n\nUsed in all four kinds.\n")
    for kind in shared:
        parts += _sections(kind, "###", seen, title=kind.__name__)
    return _page(*parts)


def plan_page() -> str:
    """docs/reference/plan.md."""
    percent = "how far the plan is above the measurement; null where it forecasts nothing"
    extra = f"\nIn JSON each also has `percent`: {percent}.\n"
    return _page(_PLAN, *_sections(Plan, "##", set(), title="Plan", added={"Distance": extra}, defaults=False))


def support_page(profiles: Profiles) -> str:
    """docs/reference/support.md."""
    table = _table(
        ("platform", "nodes", "engine", "model", "layout", "sizes", "status", "who has run the layout, or why not"),
        (
            (
                p.platform,
                str(p.nodes),
                p.engine,
                p.model,
                code(p.layout) if p.layout else "-",
                p.sizes or "-",
                p.status,
                cell(p.said),
            )
            for p in support.places(profiles)
        ),
    )
    left = _table(
        ("platform", "server", "why"),
        ((p.name, cell(p.title), cell(why)) for p, why in support.without(profiles)),
    )
    return _page(_SUPPORT, table, "## No layout\n", left, _NO_TENSORRT)


def _sections(
    kind: type,
    level: str,
    seen: set[type],
    *,
    title: str,
    later: Sequence[type] = (),
    added: Mapping[str, str] | None = None,
    defaults: bool = True,
) -> Iterator[str]:
    """The type and what its fields hold, one heading each; types in `seen` or `later` are left out."""
    for one in nested(kind):
        if one in seen or (one in later and one is not kind):
            continue
        seen.add(one)
        heading = f"{level} {title}" if one is kind else f"{level}# {one.__name__}"
        lines = [
            (f"`{row.name}`", row.kind, row.default or "required", cell(row.meaning) or "see above")
            for row in rows(one)
        ]
        table = _table(("key", "type", "default", "meaning"), lines)
        if not defaults:
            table = _table(("field", "type", "meaning"), [(name, text, meaning) for name, text, _, meaning in lines])
        yield f"{heading}\n\n{_prose(doc(one))}\n{(added or {}).get(one.__name__, '')}\n{table}"


def _prose(text: str) -> str:
    return text.replace("<", "&lt;")


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    found = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in found)


def _page(*parts: str) -> str:
    return _GENERATED + "\n\n" + "\n".join(part.strip("\n") + "\n" for part in parts)


PAGES: Mapping[str, Callable[[Profiles], str]] = {
    "cluster": lambda _profiles: cluster_page(),
    "profiles": lambda _profiles: profiles_page(),
    "plan": lambda _profiles: plan_page(),
    "support": support_page,
}
