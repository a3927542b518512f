"""Stage the weights: every node gets the pinned revisions onto its own disk, each file proven by its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from k3ctl import fanout
from k3ctl.errors import K3ctlError, PhaseFailed
from k3ctl.phases.base import Assessment, Change, Outcome, Work
from k3ctl.phases.follow import follow, not_begun
from k3ctl.plan import ModelPlan
from k3ctl.secret import Secret
from k3ctl.staging.job import StageJob, inspect_request, stage_of, stage_units, start_request, status_request
from k3ctl.staging.look import Look, read_looks, room_problems, to_do
from k3ctl.staging.manifest import Manifest, from_json, to_json
from k3ctl.staging.progress import Snapshot, read_snapshot
from k3ctl.units import size

START_S = 60.0
ASK_S = 15.0


@dataclass(frozen=True)
class Staged:
    """What lies whole on every node of the run: manifests by destination folder."""

    manifests: Mapping[str, Manifest]


@dataclass(frozen=True)
class _Todo:
    """Per node, the stages that are not whole there."""

    stages: Mapping[str, tuple[StageJob, ...]]
    value: Staged


@dataclass(frozen=True)
class Stage:
    """The served model and its drafts. The agents on the nodes do the work and outlive this process."""

    name: str = "stage"
    title: str = "Stage the weights"
    needs: tuple[str, ...] = ("preflight",)
    scope: Literal["host", "gang"] = "host"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """Manifests, and one look at each node. Refuses when a disk cannot take what is missing."""
        token = _token(work)
        stages = tuple(stage_of(work.plan.cluster, model, _manifest(work, model, token)) for model in work.plan.models)
        value = Staged({stage.dest: stage.manifest for stage in stages})
        looks = _look(work, stages)
        _tell_extra(work, stages, looks)
        changes, todo = [], {}
        for node, seen in looks.items():
            missing = [(stage, text) for stage, look in zip(stages, seen, strict=True) if (text := to_do(stage, look))]
            changes += [Change(text, node) for _, text in missing]
            if missing:
                todo[node] = tuple(stage for stage, _ in missing)
        if not changes:
            return Assessment(_whole(stages, looks), value=value)
        problems = room_problems(stages, looks)
        if problems:
            raise PhaseFailed(*problems)
        bytes_left = sum(look.missing for seen in looks.values() for look in seen)
        said = f"{size(bytes_left)} to fetch onto {len(todo)} of {len(work.nodes)} nodes"
        return Assessment(said, tuple(changes), value=value, plan=_Todo(todo, value))

    def apply(self, work: Work, assessment: Assessment) -> Outcome:
        """Start the agents on all nodes and follow them; a node that fails does not hold up the others."""
        todo = assessment.plan
        assert isinstance(todo, _Todo)  # noqa: S101 - apply is only called with our own assessment
        token = _token(work)

        def one(node: str) -> Snapshot:
            stages = todo.stages[node]
            units = stage_units(work.plan.cluster)
            call = work.world.agent.call
            agent = work.world.agent.install(node)
            if work.stop.is_set():
                raise not_begun(node)
            request = start_request(stages, agent, token)
            call(node, "fetch", request, timeout_s=START_S)
            asked = status_request(stages)
            return follow(work, node, lambda: read_snapshot(call(node, "fetch", asked, timeout_s=ASK_S)), units)

        ended = fanout.each(tuple(todo.stages), one).all()
        fetched = sum(snapshot.fetched for snapshot in ended.values())
        retries = sum(snapshot.retries for snapshot in ended.values())
        said = f"{_titles(todo.value)} whole on {len(work.nodes)} nodes: {size(fetched)} fetched, every digest proven"
        return Outcome("changed", said + (f", {retries} retries" if retries else ""), value=todo.value)


def _token(work: Work) -> Secret | None:
    file = work.cluster.spec.weights.token_file
    return work.world.hub.token(file) if file else None


def _manifest(work: Work, model: ModelPlan, token: Secret | None) -> Manifest:
    """The manifest of one model: a commit never changes, so a kept copy is as good as the hub's answer."""
    key = hashlib.sha256(f"{model.endpoint}\n{model.repo}\n{model.commit}".encode()).hexdigest()[:16]
    note = f"manifest-{key}.json"
    kept = work.world.store.note(note)
    if kept is not None:
        try:
            manifest = from_json(json.loads(kept))
            if (manifest.endpoint, manifest.repo, manifest.commit) == (model.endpoint, model.repo, model.commit):
                return manifest
            found = f"it is of {manifest.repo}@{manifest.commit[:8]} from {manifest.endpoint}"
        except (ValueError, K3ctlError) as error:
            found = str(error)
        work.report.say(f"the kept manifest of {model.repo} is not used: {found}; asking the hub", level="warn")
    manifest = work.world.hub.manifest(model.endpoint, model.repo, model.commit, token)
    work.world.store.keep(note, json.dumps(to_json(manifest), sort_keys=True))
    listed = f"{len(manifest.files)} files, {size(manifest.total)}, listed by {model.endpoint}"
    work.report.say(f"{model.repo}@{model.commit[:8]}: {listed}")
    return manifest


def _look(work: Work, stages: tuple[StageJob, ...]) -> Mapping[str, tuple[Look, ...]]:
    """What is on each node, in one round trip each."""
    request = inspect_request(stages)
    ids = [stage.manifest.id for stage in stages]

    def look(node: str) -> tuple[Look, ...]:
        return read_looks(work.world.agent.call(node, "fetch", request, timeout_s=START_S), ids)

    return fanout.each(work.nodes, look).all()


def _tell_extra(work: Work, stages: tuple[StageJob, ...], looks: Mapping[str, tuple[Look, ...]]) -> None:
    """Files that nobody listed are left alone, but an engine may load them."""
    for node, seen in looks.items():
        for stage, look in zip(stages, seen, strict=True):
            if look.extra:
                names = ", ".join(look.extra[:3]) + (" ..." if len(look.extra) > 3 else "")
                work.report.say(
                    f"{stage.dest} holds files that are not in {stage.title}: {names}", node=node, level="warn"
                )


def _titles(staged: Staged) -> str:
    return " and ".join(f"{m.repo}@{m.commit[:8]}" for m in staged.manifests.values())


def _whole(stages: tuple[StageJob, ...], looks: Mapping[str, tuple[Look, ...]]) -> str:
    """Why there is nothing to do: what is whole, where, and since when that is proven."""
    parts = []
    for number, stage in enumerate(stages):
        times = sorted({seen[number].proven_at for seen in looks.values()})
        when = times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"
        parts.append(
            f"{stage.title} whole on {len(looks)} nodes "
            f"({len(stage.manifest.files)} files, {size(stage.manifest.total)}, every digest proven at {when})"
        )
    return "; ".join(parts)
