"""What the build is given from the machine outside: pip itself and its settings, name servers, certificates."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from k3ctl.errors import Problem
from k3ctl.lab import lending
from k3ctl.lab.process import LabFailed
from k3ctl.lab.runtime.recipe import FILES, source

INSIDE = "/run/k3ctl"  # where the folder is bound inside the base system
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_RESOLVERS = ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf", "/run/NetworkManager/no-stub-resolv.conf")


@dataclass(frozen=True)
class Given:
    """`folders` are lent read-only at their own path; `environment` is all that the build sees of ours."""

    folders: tuple[str, ...]
    environment: Mapping[str, str]


def give(folder: Path) -> Given:
    """Fill the folder for one build."""
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(source(name), folder / name)
    _give_pip(folder)
    files = lending.pip_config_files(Path.home())
    pip = lending.pip_settings((f.read_text(errors="replace") for f in files if f.is_file()), os.environ)
    lent = lending.local_folders(pip)
    certificate = pip.get("cert") or os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE", "")
    if Path(certificate).is_file():
        shutil.copy(certificate, folder / "certificates.pem")
        pip["cert"] = f"{INSIDE}/certificates.pem"
    (folder / "pip.conf").write_text(lending.pip_conf(pip))
    texts = [Path(p).read_text(errors="replace") for p in _RESOLVERS if Path(p).is_file()]
    # No network of its own: a name server on loopback is reached too.
    (folder / "resolv.conf").write_text(lending.resolver(texts) or (texts[0] if texts else ""))
    environment = {k: os.environ[k] for k in _PROXIES if k in os.environ}
    return Given(lent, {**environment, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})


def _give_pip(folder: Path) -> None:
    """Copy pip: this Python's own, or else the wheel that Python ships for ensurepip."""
    found = importlib.util.find_spec("pip")
    if found is not None and found.origin:
        shutil.copytree(Path(found.origin).parent, folder / "pip", ignore=shutil.ignore_patterns("__pycache__"))
        return
    bundled = Path(sysconfig.get_paths()["stdlib"]) / "ensurepip" / "_bundled"
    system = Path("/usr/share/python-wheels")
    wheels = [wheel for place in (bundled, system) for wheel in sorted(place.glob("pip-*.whl"))]
    if not wheels:
        raise LabFailed(
            Problem(
                what="no pip on this machine to build the serving environment with",
                found=f"neither a module pip nor a wheel in {bundled} or {system}",
                fix="apt-get install -y python3-venv",
            )
        )
    shutil.unpack_archive(wheels[-1], folder, "zip")
