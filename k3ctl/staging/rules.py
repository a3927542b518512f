"""What a listing must keep to before a byte moves: paths that cannot leave the folder, digests, whole shard sets."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from k3ctl.errors import Problem
from k3ctl.staging.manifest import Manifest, ManifestFile

INDEX_SUFFIX = ".safetensors.index.json"
OWN_FOLDER = ".k3stage"
_SHARD = re.compile(r"^(?P<stem>.*)-(?P<i>\d+)-of-(?P<n>\d+)(?P<end>\.[A-Za-z0-9.]+)$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


def problems_of(manifest: Manifest, index_text: str | None) -> list[Problem]:
    """All that is wrong with a manifest; `index_text` is the content of its safetensors index, None without one."""
    problems = [*_path_problems(manifest.files), *_digest_problems(manifest.files), *_shard_problems(manifest.files)]
    if not manifest.files:
        problems.append(Problem(what=f"{manifest.repo} has no files at {manifest.commit[:12]}"))
    if index_text is not None:
        problems.extend(_index_problems(index_text, manifest.files))
    return problems


def index_file(files: Iterable[ManifestFile]) -> ManifestFile | None:
    """The safetensors index at the top of the repository, if there is one."""
    found = [f for f in files if f.path.endswith(INDEX_SUFFIX) and "/" not in f.path]
    preferred = [f for f in found if f.path == f"model{INDEX_SUFFIX}"]
    candidates = preferred or found
    return candidates[0] if candidates else None


def _path_problems(files: Sequence[ManifestFile]) -> list[Problem]:
    """Paths must be relative and plain, and must not clash with each other on any file system."""
    problems = [
        Problem(what="the listing holds a path that k3ctl refuses", found=repr(f.path), expected=reason)
        for f in files
        if (reason := _refused(f.path))
    ]
    seen: dict[str, str] = {}
    folders = {folder.casefold() for f in files for folder in _parents(f.path)}
    for file in files:
        key = file.path.casefold()
        if key in seen:
            problems.append(
                Problem(
                    what="two files of the listing have the same name but for case", found=f"{seen[key]}, {file.path}"
                )
            )
        seen[key] = file.path
        if key in folders:
            problems.append(Problem(what="a path of the listing is a file and a folder", found=file.path))
    return problems


def _refused(path: str) -> str:
    """Why a path is refused, or nothing."""
    parts = path.split("/")
    if not path or path.startswith("/"):
        return "a relative path"
    if any(part in ("", ".", "..") for part in parts):
        return "a path without empty, . and .. parts"
    if _CONTROL.search(path):
        return "a path without control characters and backslashes"
    if parts[0].casefold() == OWN_FOLDER:
        return f"a path outside of k3ctl's own folder {OWN_FOLDER}"
    if len(path.encode()) > 1024 or any(len(part.encode()) > 240 for part in parts):
        return "at most 240 bytes a part and 1024 in all"
    return ""


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _digest_problems(files: Iterable[ManifestFile]) -> list[Problem]:
    """Each file has a size and exactly one digest: what cannot be proven is not staged."""
    problems = []
    for file in files:
        good = bool(re.fullmatch(r"[0-9a-f]{64}", file.sha256)) if file.sha256 else False
        good_git = bool(re.fullmatch(r"[0-9a-f]{40}", file.git_sha1)) if file.git_sha1 else False
        if bool(file.sha256) == bool(file.git_sha1) or not (good or good_git) or file.size < 0:
            problems.append(
                Problem(
                    what=f"the listing gives no usable size and digest for {file.path}",
                    found=f"size {file.size}, sha256 {file.sha256 or '-'}, git sha1 {file.git_sha1 or '-'}",
                    expected="a size and either a sha256 or a git sha1",
                )
            )
    return problems


def _shard_problems(files: Iterable[ManifestFile]) -> list[Problem]:
    """Names `<stem>-<i>-of-<n>`: every i from 1 to n once (or 0 to n-1, as some tools count).

    Paddings of i and n may differ (K3: 00001-of-000096).
    """
    sets: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for file in files:
        match = _SHARD.match(file.path)
        if match:
            sets[(match["stem"], int(match["n"]), match["end"])].append(int(match["i"]))
    problems = []
    for (stem, count, end), numbers in sets.items():
        begin = 0 if 0 in numbers else 1
        expected = range(begin, begin + count)
        missing = sorted(set(expected) - set(numbers))
        extra = sorted(n for n in set(numbers) if n not in expected or numbers.count(n) > 1)
        if missing or extra:
            what = f"the shards {stem}-*-of-{count}{end} are not a whole set"
            found = "; ".join(
                text
                for text in (
                    f"missing {_some(missing)}" if missing else "",
                    f"out of range or twice {_some(extra)}" if extra else "",
                )
                if text
            )
            problems.append(Problem(what=what, found=found, expected=f"{begin} to {begin + count - 1}, each once"))
    return problems


def _index_problems(text: str, files: Iterable[ManifestFile]) -> list[Problem]:
    """Every file that the index's weight_map names must be in the listing, and be big enough for its tensors."""
    try:
        index = json.loads(text)
        named = set(index["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [Problem(what="the safetensors index cannot be read", found=repr(error), expected="a weight_map")]
    sizes = {f.path: f.size for f in files}
    missing = sorted(named - sizes.keys())
    if missing:
        return [
            Problem(
                what=f"the safetensors index names {len(missing)} files that the listing does not hold",
                found=_some(missing),
                expected="every file of weight_map in the listing",
                fix="the upload is not whole: choose another revision",
            )
        ]
    metadata = index.get("metadata")
    tensors = metadata.get("total_size", 0) if isinstance(metadata, dict) else 0
    there = sum(sizes[name] for name in named)
    if isinstance(tensors, int) and tensors > there:
        return [
            Problem(
                what="the shards are smaller than the tensors the index lists",
                found=f"{there} bytes in {len(named)} shards",
                expected=f"at least {tensors} bytes",
            )
        ]
    return []


def _some(items: Sequence[object]) -> str:
    """The first few of a list as text."""
    text = ", ".join(str(item) for item in items[:8])
    return f"{text} and {len(items) - 8} more" if len(items) > 8 else text
