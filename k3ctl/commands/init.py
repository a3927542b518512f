"""`k3ctl init`: a new inventory folder from what the flags say. Asks nothing, and says what is left to fill in."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from k3ctl.commands.output import Output
from k3ctl.errors import ConfigError, ExitCode, Problem
from k3ctl.inventory import scaffold
from k3ctl.inventory.judge import CLUSTER_NAME
from k3ctl.nearest import nearest

if TYPE_CHECKING:
    from k3ctl.profiles.types import Profiles

_FORM = "user@address:port; ranges as gpu-[01:04]"
_PLACEHOLDER = "a placeholder is still there"


@dataclass(frozen=True)
class InitOptions:
    """What the flags say. `nodes` 0: as many as hosts are given. `engine` empty: one with a layout for the platform.

    `hosts` are `user@address[:port]`, `fabric` addresses with or without prefix length, in the same order.
    """

    name: str
    platform: str = ""
    nodes: int = 0
    hosts: tuple[str, ...] = ()
    fabric: tuple[str, ...] = ()
    engine: str = ""
    model: str = "kimi-k3"
    directory: str = "inventories"


def init(options: InitOptions, out: Output) -> int:
    """Write the folder, or say everything that is missing or wrong; an existing folder is never changed."""
    from k3ctl.profiles.load import load

    made = _scaffold(options, load())
    folder = Path(options.directory).expanduser() / options.name
    _write(folder, made)
    left = scaffold.missing(made)
    if out.form == "json":
        out.json({"path": str(folder), "files": sorted(scaffold.files(made)), "missing": list(left)})
        return int(ExitCode.OK)
    out.text(str(folder))
    for item in left:
        out.line(f"fill in {scaffold.UNKNOWN} in {item}")
    out.line(f"next: k3ctl {'validate' if left else 'plan'} {folder}")
    return int(ExitCode.OK)


def _scaffold(options: InitOptions, profiles: Profiles) -> scaffold.Scaffold:
    """The inventory to write. Raises ConfigError with everything that the flags lack or have wrong."""
    problems = [*_name(options), *_unknown(options, profiles)]
    hosts = _hosts(options, problems)
    fabric, subnet = _fabric(options, problems)
    count = options.nodes or len(hosts)
    problems += _counts(options, len(hosts), len(fabric), count)
    platform = profiles.platforms.get(options.platform)
    if platform and (why := profiles.gpus[platform.gpu].refused):
        problems.append(Problem(what=why, key="--platform", found=options.platform, fix="choose other GPUs"))
    if platform and count > platform.max_nodes:
        what = f"{platform.title} is planned for at most {platform.max_nodes} nodes"
        problems.append(Problem(what=what, key="--nodes", found=str(count)))
    if problems or platform is None:
        raise ConfigError(*problems)
    hosts += [scaffold.Host("")] * (count - len(hosts))
    fabric += [scaffold.UNKNOWN] * (count - len(fabric))
    with_fabric = tuple(replace(host, fabric=address) for host, address in zip(hosts, fabric, strict=True))
    folder = Path(options.directory).expanduser() / options.name
    return scaffold.Scaffold(
        name=options.name,
        folder=str(folder),
        platform=platform,
        model=options.model,
        engine=options.engine or _engine(options, profiles),
        hosts=scaffold.named(_alone(with_fabric)),
        subnet=subnet,
        schema=_schema(folder),
    )


def _name(options: InitOptions) -> Iterable[Problem]:
    if not CLUSTER_NAME.fullmatch(options.name):
        yield Problem(
            what="the name of an inventory names units and folders on every node",
            key="NAME",
            found=options.name,
            expected="1 to 31 of a-z, 0-9 and -, beginning with a letter or digit",
        )


def _unknown(options: InitOptions, profiles: Profiles) -> Iterable[Problem]:
    """Names that no profile has; a platform that is left out."""
    asked = [("--platform", options.platform, list(profiles.platforms))]
    asked += [("--model", options.model, list(profiles.models))]
    asked += [("--engine", options.engine, list(profiles.engines))] if options.engine else []
    for key, name, there in asked:
        if name in there:
            continue
        near = nearest(name, there) if name else ""
        yield Problem(
            what=f"{key} says which profile to take" if not name else f"no profile has the name that {key} says",
            key=key,
            found=name,
            expected="one of " + ", ".join(sorted(there)),
            fix=f"did you mean {near}?" if near else "",
        )


def _hosts(options: InitOptions, problems: list[Problem]) -> list[scaffold.Host]:
    hosts = []
    for text in options.hosts:
        try:
            hosts += [scaffold.host(one) for one in scaffold.expand(text)]
        except ValueError as error:
            problems.append(Problem(what=f"this is no host: {error}", key="--host", found=text, expected=_FORM))
    return hosts


def _fabric(options: InitOptions, problems: list[Problem]) -> tuple[list[str], str]:
    """Fabric addresses, and their network when every one names the same."""
    pairs = []
    for text in options.fabric:
        try:
            pairs += [scaffold.fabric(one) for one in scaffold.expand(text)]
        except ValueError as error:
            expected = "an address, as 198.51.100.11/24"
            problems.append(Problem(what=f"this is no address: {error}", key="--fabric", found=text, expected=expected))
    networks = {network for _, network in pairs}
    if len(networks) > 1:
        what = "the fabric addresses are not all of one network"
        found = ", ".join(sorted(network or "without prefix length" for network in networks))
        problems.append(Problem(what=what, key="--fabric", found=found))
    return [address for address, _ in pairs], networks.pop() if len(networks) == 1 else ""


def _counts(options: InitOptions, hosts: int, fabric: int, count: int) -> Iterable[Problem]:
    if not count and not options.hosts:
        yield Problem(what="how many nodes?", key="--nodes", fix="give --nodes, or one --host for each")
    if options.nodes < 0:
        yield Problem(what="a number of nodes is 1 or more", key="--nodes", found=str(options.nodes))
    if options.nodes and hosts > options.nodes:
        yield Problem(what=f"{hosts} hosts are given for {options.nodes} nodes", key="--host", fix="correct --nodes")
    if fabric > max(count, hosts):
        yield Problem(what=f"{fabric} fabric addresses are given for {count} nodes", key="--fabric")


def _alone(hosts: tuple[scaffold.Host, ...]) -> tuple[scaffold.Host, ...]:
    """A single host needs no network between nodes: its own address, when that is one, serves as fabric address."""
    first = hosts[0]
    if len(hosts) > 1 or first.fabric != scaffold.UNKNOWN:
        return hosts
    try:
        address, _ = scaffold.fabric(first.address)
    except ValueError:
        return hosts
    return (replace(first, fabric=address),)


def _engine(options: InitOptions, profiles: Profiles) -> str:
    """An engine with a layout for the platform and the model: vllm before others; vllm as well when none has one."""
    fit = [
        engine.name
        for engine in profiles.engines.values()
        if any(options.platform in lay.platforms and options.model in lay.models for lay in engine.layouts)
    ]
    return "vllm" if "vllm" in fit or not fit else sorted(fit)[0]


def _schema(folder: Path) -> str:
    """The schema's path as seen from the folder when both are in one checkout, else empty."""
    from k3ctl.schemas import file_of

    root = file_of("cluster").parents[2]
    inside = folder.resolve().is_relative_to(root) and file_of("cluster").is_file()
    return os.path.relpath(file_of("cluster"), folder.resolve()) if inside else ""


def _write(folder: Path, made: scaffold.Scaffold) -> None:
    """All files at once: written beside the folder, judged there as `validate` judges, then renamed into place."""
    if folder.exists() or folder.is_symlink():
        what = "there is already something of that name, and nothing of yours is overwritten"
        raise ConfigError(Problem(what=what, file=str(folder), fix="choose another name, or another --dir"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".k3ctl-init-", dir=folder.parent))
    except OSError as error:
        raise ConfigError(_unwritable(folder, error)) from error
    try:
        draft = scratch / folder.name
        for path, text in scaffold.files(made).items():
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            (draft / path).write_text(text, encoding="utf-8")
        _judge(draft, folder)
        draft.rename(folder)
    except OSError as error:
        raise ConfigError(_unwritable(folder, error)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _judge(draft: Path, folder: Path) -> None:
    """Refuse what `k3ctl validate` would refuse, apart from placeholders: a host given twice, for one."""
    from k3ctl.edge.ansible_inventory import load_cluster

    try:
        load_cluster(str(draft))
    except ConfigError as error:
        # what is wrong with a placeholder's value follows from its being one
        wrong = [p for p in error.problems if p.what != _PLACEHOLDER and scaffold.UNKNOWN not in p.found]
        if wrong:
            shown = [replace(p, file=p.file.replace(str(draft), str(folder)), line=None) for p in wrong]
            raise ConfigError(*shown) from None


def _unwritable(folder: Path, error: OSError) -> Problem:
    return Problem(what=f"the folder cannot be written: {error.strerror}", file=str(folder), fix="choose another --dir")
