"""The serving environment of a plan: an archive as its record says, or a container image of the GPU's vendor."""

from __future__ import annotations

import re

from k3ctl.errors import ConfigError, Problem
from k3ctl.plan import RuntimePlan
from k3ctl.planner.arguments import fill
from k3ctl.planner.subject import Subject
from k3ctl.profiles.types import BundleRuntime, ContainerRuntime, Image, RuntimeRecord

_DOCKER = ("--network", "host", "--ipc", "host")


def runtime(subject: Subject, record: RuntimeRecord | None) -> RuntimePlan:
    """`record` describes the archive; a container needs none. ConfigError when one is missing."""
    wanted = subject.version.runtime
    if isinstance(wanted, ContainerRuntime):
        return _container(subject, wanted)
    return _bundle(subject, wanted, record)


def image_of(subject: Subject) -> Image | None:
    """The container image, None when the environment is an archive."""
    wanted = subject.version.runtime
    if not isinstance(wanted, ContainerRuntime):
        return None
    for vendor, image in wanted.images.items():
        if vendor == subject.gpu.vendor:
            return image
    raise ConfigError(
        Problem(
            what=f"{subject.engine.name} {subject.version.version} has no image for {subject.gpu.title}",
            file=subject.file,
            key="engine_version" if subject.cluster.spec.engine_version else "engine",
            found=subject.gpu.vendor,
            expected=", ".join(wanted.images),
            fix="choose another version or engine",
        )
    )


def driver_problem(subject: Subject, major: int, node: str = "") -> Problem | None:
    """What is wrong with a node's driver of that major version; None when it is new enough."""
    needed = min_driver(subject)
    if major >= needed:
        return None
    source = next(
        amount.source for vendor, amount in subject.version.min_driver.items() if vendor == subject.gpu.vendor
    )
    return Problem(
        what=f"the driver is too old for {subject.engine.name} {subject.version.version}",
        node=node,
        found=str(major),
        expected=f"{needed} or newer ({source})",
        fix="install a newer driver, or plan an older engine_version whose image runs on it",
    )


def min_driver(subject: Subject) -> int:
    """Oldest major version of the vendor's driver; 0 when none is known."""
    found = {str(vendor): amount.value for vendor, amount in subject.version.min_driver.items()}
    return found.get(subject.gpu.vendor, 0)


def _bundle(subject: Subject, wanted: BundleRuntime, record: RuntimeRecord | None) -> RuntimePlan:
    if record is None:
        raise ConfigError(
            Problem(
                what=f"the serving environment {wanted.name} is not built", file=wanted.record, fix="k3ctl lab create"
            )
        )
    return RuntimePlan(
        kind=wanted.kind,
        name=wanted.name,
        url=fill(wanted.url, {"hub": subject.cluster.spec.weights.endpoint, "archive": record.archive}),
        digest=record.sha256,
        bytes=record.bytes,
        path=record.install_path,
        bin=f"{record.install_path}/bin",
    )


def _container(subject: Subject, wanted: ContainerRuntime) -> RuntimePlan:
    image = image_of(subject)
    if image is None:
        raise AssertionError("a container runtime has an image or was refused")
    given = next(options for vendor, options in wanted.options.items() if vendor == subject.gpu.vendor)
    options = [*_DOCKER, "--shm-size", str(wanted.shm_bytes.value), *given]
    if subject.platform.memlock and not any("memlock" in option for option in given):
        options += ["--ulimit", "memlock=-1:-1"]
    ref = image.ref if "@" in image.ref or not image.digest else f"{image.ref}@{image.digest}"
    digest = ref.partition("@sha256:")[2]
    slug = re.sub(r"[^a-z0-9.]+", "-", image.ref.partition("@")[0].lower()).strip("-")
    return RuntimePlan(
        kind=wanted.kind,
        name=image.ref.partition("@")[0],
        url=ref,
        digest=digest,
        bytes=image.unpacked_bytes.value,
        path=f"{subject.cluster.spec.paths.runtimes}/{slug}{'-' + digest[:12] if digest else ''}",
        bin="",
        options=tuple(options),
    )
