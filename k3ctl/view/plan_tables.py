"""A plan as tables and lines. Nothing is cut off: what is too long for the terminal goes on in the next line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from k3ctl.cluster import Cluster, origins
from k3ctl.plan import Plan
from k3ctl.plan.forecast import Alternative, Distance, MemoryPlan
from k3ctl.planner.difference import Difference
from k3ctl.units import duration, size

GIB = 2**30
KINDS = ("weights", "draft", "workspace", "state", "kv", "reserve")  # the order in which parts are shown


def overview(plan: Plan) -> Table:
    """What runs where, in a few lines."""
    facts = _facts()
    nodes = f"{len(plan.nodes)} node{'' if len(plan.nodes) == 1 else 's'}"
    facts.add_row("cluster", f"{plan.cluster}: {nodes} of {plan.platform}, {plan.expected.gpus} GPUs each")
    facts.add_row("engine", f"{plan.engine} {plan.engine_version} by {plan.launcher}")
    facts.add_row("layout", f"{layout_text(plan)} ({plan.layout}): {plan.why}")
    if plan.verification:
        facts.add_row("status", plan.verification.status + _status_meaning(plan.verification.status))
    for model in plan.models:
        facts.add_row("model" if model.served_name else "draft", f"{model.repo} at {model.commit}")
        facts.add_row("", model.path)
    runtime = plan.runtime
    facts.add_row("runtime", f"{runtime.kind} {runtime.url if runtime.kind == 'container' else runtime.name}")
    facts.add_row("", f"{size(runtime.bytes)}" + ("" if runtime.kind == "container" else f" in {runtime.path}"))
    if plan.max_model_len:
        facts.add_row("context", f"{plan.max_model_len:,} tokens, at most {plan.max_num_seqs} sequences at once")
    for replica in plan.replicas:
        facts.add_row(f"replica {replica.number}", f"{replica.endpoint} on {', '.join(replica.nodes)}")
    if not plan.replicas:
        facts.add_row("endpoint", plan.endpoint)
    facts.add_row("ready within", duration(plan.timeouts.engine_ready))
    return facts


def layout_text(plan: Plan) -> str:
    """'TP8 x PP2', as the alternatives are named."""
    ranks = (("TP", plan.tensor_parallel), ("PP", plan.pipeline_parallel), ("DP", plan.data_parallel))
    text = " x ".join(f"{name}{size}" for name, size in ranks if size > 1 or name == "TP")
    text += f" + EP{plan.tensor_parallel * plan.data_parallel}" if plan.expert_parallel else ""
    text += f" + DCP{plan.decode_context_parallel}" if plan.decode_context_parallel > 1 else ""
    return text + (f" + draft {plan.draft}" if plan.draft else "")


def sections(plan: Plan, *, explain: bool) -> Iterator[RenderableType]:
    """Everything below the overview, in order."""
    yield from _said(plan)
    if plan.memory:
        yield memory(plan.memory)
        yield Text(cache_text(plan, plan.memory))
    if plan.distances:
        yield distances(plan.distances)
    yield from alternatives(plan.alternatives, explain=explain)
    yield _budgets(plan)
    yield _times(plan)
    yield _ports(plan)
    yield _nodes(plan)
    if explain and plan.verification:
        yield _listed("How far it has been run", plan.verification.said)


def memory(plan: MemoryPlan) -> Table:
    """One column for every pipeline stage."""
    table = _grid("memory of one GPU", title="Memory")
    for stage in plan.stages:
        several = len(plan.stages) > 1
        head = f"stage {stage.stage}, layers {stage.first_layer}-{stage.last_layer}" if several else "GiB"
        table.add_column(head, justify="right")
    parts = sorted((part for stage in plan.stages for part in stage.parts), key=lambda part: KINDS.index(part.kind))
    names = list(dict.fromkeys(part.name for part in parts))
    for name in names:
        cells = []
        for stage in plan.stages:
            found = [part.bytes for part in stage.parts if part.name == name]
            cells.append(f"{found[0] / GIB:.2f}" if found else "-")
        table.add_row(name, *cells)
    table.add_section()
    table.add_row("weights together", *(f"{stage.total('weights') / GIB:.2f}" for stage in plan.stages))
    table.add_row("GPU", *(f"{stage.total() / GIB:.2f}" for stage in plan.stages))
    return table


def cache_text(plan: Plan, made: MemoryPlan) -> str:
    """'Cache: 1,441,792 tokens (26.4 GiB, bf16); 2,464 blocks of 768 tokens, 14 a request: 176.0 requests ...'."""
    text = f"Cache: {made.tokens:,} tokens in {made.pool_bytes / GIB:.1f} GiB ({made.kv}, states {made.state})"
    if plan.data_parallel > 1:
        text += f" for each of {plan.data_parallel} data-parallel ranks"
    if made.blocks:
        text += f"; {made.blocks:,} blocks of {made.block_tokens:,} tokens, {made.blocks_per_request} for one request"
    else:
        text += f"; {made.slots:,} state slots of {size(made.slot_bytes)}"
    return f"{text}; {made.requests:.1f} requests of {plan.max_model_len:,} tokens at once"


def distances(found: Sequence[Distance]) -> Table:
    """Published figures of this layout beside the plan's."""
    table = _grid("published for this layout", "measured", "planned", "off", "who, and how", title="Measured")
    for one in found:
        percent = one.percent
        table.add_row(
            one.what.replace("_", " "),
            _amount(one.measured, one.unit),
            "-" if one.planned is None else _amount(one.planned, one.unit),
            "-" if percent is None else f"{percent:+.1f} %",
            f"{one.source}{f'; {one.context}' if one.context else ''}",
        )
    return table


def alternatives(found: Sequence[Alternative], *, explain: bool) -> Iterator[RenderableType]:
    """Documented layouts always; those by rule with --explain, else their number."""
    shown = [one for one in found if one.documented or explain]
    hidden = [one for one in found if not one.documented and not explain]
    if shown:
        table = _grid("not chosen", "fits", "why", title="Alternatives")
        for one in shown:
            fits = {True: "yes", False: "no", None: "?"}[one.fits]
            table.add_row(f"{one.layout}{f' ({one.name})' if one.name else ''}", fits, one.why)
        yield table
    if hidden:
        no = sum(one.fits is False for one in hidden)
        yield Text(f"{len(hidden)} more layouts by rule, {no} of which do not fit: see --explain", "dim")


def origins_table(cluster: Cluster) -> Table:
    """Every value of cluster.yml and where it came from."""
    table = _grid("value", "from", title="Where values come from")
    for key, origin in sorted(origins(cluster).items()):
        if origin.kind != "default":
            place = f"{origin.file}:{origin.line}" if origin.file else {"flag": "the command line"}.get(origin.kind, "")
            table.add_row(key, place or origin.kind)
    table.add_row("everything else", "defaults")
    return table


def difference_table(found: Sequence[Difference]) -> Table:
    """What changed and what that means."""
    table = _grid("what", "node", "before", "now", "means")
    for one in found:
        table.add_row(one.what, one.node or "all", one.before or "-", one.after or "-", one.effect)
    return table


def _said(plan: Plan) -> Iterator[RenderableType]:
    for text in plan.warnings:
        yield Text(f"warning: {text}", "yellow")
    for text in plan.notes:
        yield Text(f"note: {text}")


def _budgets(plan: Plan) -> Table:
    table = _grid("host", "needs", "has", "", title="Beside the GPUs")
    words = {"ok": "ok", "short": "too little", "unknown": "preflight looks"}
    for one in plan.budgets:
        scope = "" if one.scope == "node" else " (all nodes)"
        table.add_row(f"{one.what}{scope}", one.needs, one.has or "-", words[one.verdict])
    return table


def _times(plan: Plan) -> Table:
    table = _grid("phase", "bytes a node", "time", "how", title="Bytes and times")
    for one in plan.times:
        seconds = "?" if one.seconds is None else duration(one.seconds)
        table.add_row(one.phase, size(one.bytes), seconds, one.how)
    return table


def _ports(plan: Plan) -> Table:
    table = _grid("port", "nodes", "reached by", "purpose", title="Ports")
    names = {node.rank: node.name for node in plan.nodes}
    for port in plan.ports:
        where = "all" if len(port.ranks) == len(plan.nodes) > 1 else ", ".join(names[rank] for rank in port.ranks)
        table.add_row(str(port.port), where, port.reached_by, port.purpose)
    for span in plan.port_ranges:
        where = "all" if len(span.ranks) == len(plan.nodes) else ", ".join(names[rank] for rank in span.ranks)
        table.add_row(f"{span.first}-{span.last}", where, "nodes", f"{span.purpose}: about {span.per_node} on a node")
    return table


def _nodes(plan: Plan) -> Group:
    table = _grid("rank", "node", "address", "", title="Ranks")
    for node in plan.nodes:
        rank = node.rank if node.engine_rank is None else node.engine_rank
        role = f"replica {node.replica}, " if plan.replicas else ""
        table.add_row(str(node.rank), node.name, node.address, role + ("head" if rank == 0 else "worker"))
    return Group(table, Text('--show "rank 0" prints unit, environment and command line of a rank', "dim"))


def _listed(title: str, texts: Sequence[str]) -> Group:
    return Group(Text(title, "italic"), *(Text(f"  {text}") for text in texts))


def _status_meaning(status: str) -> str:
    meaning = {
        "verified": "run on this hardware by those named",
        "published": "documented by others, not run by k3ctl",
        "inferred": "by arithmetic or analogy: nobody has run it as it stands",
        "unverified": "documented, and nobody known has run it",
        "simulated": "on simulated hardware",
    }
    return f": {meaning[status]} (--explain says who)" if status in meaning else ""


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / GIB:.2f} GiB"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:g} {unit}"


def _facts() -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _grid(*columns: str, title: str = "") -> Table:
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
