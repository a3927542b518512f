"""The outer machine's own ways to packages, lent to the machines: apt sources, CA certificates, pip, resolver.

Everything is computed from the outer machine's configuration; nothing here names a mirror.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from k3ctl.errors import Problem
from k3ctl.lab.process import LabFailed, Runner, must, run

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
PIP_BUNDLE = "/etc/ssl/certs/k3lab-pip.pem"
_PIP_KEYS = ("index-url", "extra-index-url", "find-links", "trusted-host", "no-index", "proxy", "timeout", "cert")
_LISTS = ("extra-index-url", "find-links", "trusted-host")
_KEYRINGS = re.compile(r"(debian-archive|ubuntu-archive)[a-z-]*keyring[a-z.-]*\.(gpg|pgp)$")


@dataclass(frozen=True)
class Lent:
    """What every machine gets. `files` maps path -> content; `folders` are bound read-only at the same path."""

    sources: tuple[str, ...]
    apt_options: tuple[str, ...]
    pip: Mapping[str, str]
    folders: tuple[str, ...]
    files: Mapping[str, bytes]
    resolv_conf: str


# --- apt ---------------------------------------------------------------------------------------------------------


def parse_sources(text: str, *, deb822: bool) -> Iterator[str]:
    """One-line entries (`deb [options] URI SUITE COMPONENT...`) of a sources file of either format."""
    if not deb822:
        for line in text.splitlines():
            if line.split("#")[0].strip().startswith("deb "):
                yield " ".join(line.split("#")[0].split())
        return
    for paragraph in re.split(r"\n\s*\n", text):
        yield from _entries(_fields(paragraph))


def _fields(paragraph: str) -> dict[str, str]:
    """Fields of one deb822 paragraph, names in lower case, continuation lines joined."""
    fields: dict[str, str] = {}
    key = ""
    for line in paragraph.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            fields[key] = fields.get(key, "") + "\n" + line.strip()
        elif ":" in line:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            fields[key] = value.strip()
    return fields


def _entries(fields: Mapping[str, str]) -> Iterator[str]:
    if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
        return
    options = []
    if fields.get("signed-by", "").startswith("/"):
        options.append(f"signed-by={fields['signed-by']}")
    if fields.get("trusted", "").lower() in ("yes", "true"):
        options.append("trusted=yes")
    head = f"deb [{' '.join(options)}]" if options else "deb"
    for uri in fields.get("uris", "").split():
        for suite in fields.get("suites", "").split():
            yield " ".join([head, uri, suite, *fields.get("components", "").split()])


def archive_entries(entries: Iterable[str], codename: str) -> tuple[str, ...]:
    """The entries of the distribution's own archive: third-party sources stay on the outer machine."""
    suites = {codename, *(f"{codename}-{part}" for part in ("updates", "security"))}
    kept: dict[str, None] = {}
    for entry in entries:
        matched = re.fullmatch(r"deb (?:\[([^]]*)\] )?(\S+) (\S+) (.+)", entry)
        if not matched:
            continue
        options, uri, suite, components = matched.groups()
        signed = re.search(r"signed-by=(\S+)", options or "")
        if suite in suites and "main" in components.split() and (not signed or _KEYRINGS.search(signed[1])):
            kept[f"deb {f'[{options}] ' if options else ''}{_plain_uri(uri)} {suite} {components}"] = None
    return tuple(kept)


def _plain_uri(uri: str) -> str:
    """Cloud images name a file that lists mirrors (`mirror+file:/etc/apt/mirrors/x.list`): take its first."""
    if not uri.startswith("mirror+file:"):
        return uri
    file = Path("/" + uri.removeprefix("mirror+file:").lstrip("/"))
    mirrors = [line.split()[0] for line in file.read_text().splitlines() if line.strip() and line[0] != "#"]
    return mirrors[0] if mirrors else uri


def apt_sources(codename: str, folder: Path = Path("/etc/apt")) -> tuple[str, ...]:
    """Entries of the outer machine's own archive, or LabFailed when it has none."""
    entries: list[str] = []
    for file in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        if file.is_file() and file.suffix in (".list", ".sources"):
            entries += parse_sources(file.read_text(errors="replace"), deb822=file.suffix == ".sources")
    kept = archive_entries(entries, codename)
    if not kept:
        raise LabFailed(
            Problem(
                what="no apt source of the distribution's own archive",
                found=f"{len(entries)} entries, none for {codename} main",
                expected=f"an entry `deb URI {codename} main` in sources.list or sources.list.d",
                file=str(folder),
            )
        )
    return kept


def apt_options(dump: str) -> tuple[str, ...]:
    """Proxy, certificate and date settings, as lines of an apt.conf, from the text of `apt-config dump`."""
    wanted = re.compile(r"Acquire::(https?(::.*)?::(Proxy|CaInfo|Verify-\w+)|Check-\w[\w-]*|ForceIPv4|Retries)\b", re.I)
    return tuple(line for line in dump.splitlines() if wanted.match(line) and not line.endswith(' "";'))


# --- pip ---------------------------------------------------------------------------------------------------------


def pip_settings(texts: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """What pip would use: config files in order of rising precedence, then PIP_* variables. Lists add up."""
    merged: dict[str, str] = {}
    for text in texts:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(text)
        except configparser.Error:
            continue  # pip itself refuses such a file; the lab needs no pip of the outer machine
        for section in ("global", "install", "download"):
            if parser.has_section(section):
                _add(merged, dict(parser.items(section)))
    _add(merged, {k[4:].lower().replace("_", "-"): v for k, v in environment.items() if k.startswith("PIP_")})
    return merged


def _add(merged: dict[str, str], values: Mapping[str, str]) -> None:
    for key in _PIP_KEYS:
        if key not in values:
            continue
        words = values[key].split()
        if key in _LISTS:
            words = list(dict.fromkeys([*merged.get(key, "").split(), *words]))
        merged[key] = " ".join(words)


def pip_config_files(home: Path) -> list[Path]:
    """Where pip looks, in order of rising precedence."""
    files = [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        home / ".config/pip/pip.conf",
    ]
    files.append(Path(sys.prefix) / "pip.conf")
    if os.environ.get("PIP_CONFIG_FILE", "") not in ("", os.devnull):
        files.append(Path(os.environ["PIP_CONFIG_FILE"]))
    return files


def local_folders(pip: Mapping[str, str]) -> tuple[str, ...]:
    """Folders of this machine that pip's settings point at; an index `/x/simple` needs all of /x."""
    found: dict[str, None] = {}
    for key in ("find-links", "index-url", "extra-index-url"):
        for word in pip.get(key, "").split():
            path = re.sub(r"^file://(localhost)?", "", word)
            if path.startswith("/"):
                path = re.sub(r"/simple/?$", "", path) if "index" in key else path
                found[path.rstrip("/")] = None
    return tuple(path for path in found if path and Path(path).is_dir())


def pip_conf(pip: Mapping[str, str]) -> str:
    """Text of /etc/pip.conf of a machine."""
    if not pip:
        return ""
    return "[global]\n" + "".join(f"{key} = {pip[key]}\n" for key in _PIP_KEYS if key in pip)


# --- names -------------------------------------------------------------------------------------------------------


def resolver(texts: Iterable[str]) -> str:
    """The first resolv.conf that names a server which a machine can reach: IPv4 and not loopback. '' when none."""
    for text in texts:
        lines = text.splitlines()
        servers = [
            line
            for line in lines
            if re.match(r"nameserver\s+\d+\.", line) and not re.match(r"nameserver\s+127\.", line)
        ]
        if servers:
            return "\n".join([*servers, *(line for line in lines if re.match(r"(search|options)\s", line))]) + "\n"
    return ""


def collect(codename: str, home: Path, runner: Runner = run) -> Lent:
    """Everything that this outer machine lends. `home` is the invoking user's home."""
    pip = pip_settings((f.read_text(errors="replace") for f in pip_config_files(home) if f.is_file()), os.environ)
    files: dict[str, bytes] = {}
    for file in sorted(Path("/usr/local/share/ca-certificates").glob("**/*.crt")):
        files[str(file)] = file.read_bytes()
    if files and Path(BUNDLE).is_file():
        files[BUNDLE] = Path(BUNDLE).read_bytes()
    if "cert" in pip and Path(pip["cert"]).is_file():
        files[PIP_BUNDLE] = Path(pip["cert"]).read_bytes()
        pip["cert"] = PIP_BUNDLE
    texts = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf", "/run/NetworkManager/no-stub-resolv.conf")
    return Lent(
        sources=apt_sources(codename),
        apt_options=apt_options(must(runner, ["apt-config", "dump"])),
        pip=pip,
        folders=local_folders(pip),
        files=files,
        resolv_conf=resolver(Path(t).read_text() for t in texts if Path(t).is_file()),
    )
