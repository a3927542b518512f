"""The cluster's own known_hosts file: which host keys were trusted by name. Nothing else is ever believed."""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from k3ctl.errors import ConfigError, Problem

FILE = "known_hosts"
SSH_PORT = 22
FORMAT = "lines of `host keytype base64`, or `[host]:port keytype base64`"


@dataclass(frozen=True)
class HostKey:
    """One trusted key. `name` is the host as OpenSSH writes it: `host`, or `[host]:port` for other ports than 22."""

    name: str
    keytype: str
    key: str  # base64

    @property
    def fingerprint(self) -> str:
        """As OpenSSH prints it: `SHA256:` and base64 without padding."""
        return fingerprint(base64.b64decode(self.key))

    @property
    def line(self) -> str:
        """The line of known_hosts."""
        return f"{self.name} {self.keytype} {self.key}"


def fingerprint(blob: bytes) -> str:
    """The fingerprint of a public key's wire form, as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def host_name(address: str, port: int) -> str:
    """The name of a host in known_hosts, as OpenSSH writes it: IPv6 has brackets only with a port."""
    return address if port == SSH_PORT else f"[{address}]:{port}"


def parse(text: str, source: str) -> tuple[HostKey, ...]:
    """The keys of a known_hosts text. A line that is no key is an error: half a file must not pass for a whole one."""
    keys: list[HostKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        keys.extend(_parse_line(fields, source, number))
    return tuple(keys)


def _parse_line(fields: list[str], source: str, number: int) -> Iterator[HostKey]:
    try:
        names, keytype, key = fields[0], fields[1], fields[2]
        blob = base64.b64decode(key, validate=True)
        if not blob[4:].startswith(keytype.encode()):
            raise ValueError("key type and key do not agree")
    except (IndexError, ValueError, binascii.Error) as error:
        raise ConfigError(
            Problem(
                what="the file of trusted host keys is damaged",
                found=f"line {number} is no host key",
                expected=FORMAT,
                fix="remove that line and run `k3ctl trust` again",
                file=source,
                line=number,
            )
        ) from error
    for name in names.split(","):
        yield HostKey(name, keytype, key)


class KnownHosts:
    """The known_hosts file of one cluster, in its state folder (`<state>/<cluster>/known_hosts`, mode 0600)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, cluster_state_dir: Path) -> KnownHosts:
        """The file of the cluster whose state folder this is."""
        return cls(cluster_state_dir / FILE)

    def read(self) -> tuple[HostKey, ...]:
        """All trusted keys; none when there is no file yet."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ()
        return parse(text, str(self.path))

    def of_host(self, address: str, port: int) -> tuple[HostKey, ...]:
        """The trusted keys of that host and port."""
        name = host_name(address, port)
        return tuple(key for key in self.read() if key.name == name)

    def put(self, keys: Iterable[HostKey]) -> None:
        """Trust these keys: all earlier keys of the same hosts go. Atomic; two writers wait for each other."""
        new = tuple(keys)
        names = {key.name for key in new}
        with self._locked():
            kept = [key for key in self.read() if key.name not in names]
            self._write("".join(f"{key.line}\n" for key in (*kept, *new)))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The folder and not the file: the file is replaced, so a lock on it would be a lock on the old one.
        handle = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _write(self, text: str) -> None:
        handle, temporary = tempfile.mkstemp(prefix=".known_hosts.", dir=self.path.parent)  # mkstemp makes it 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def add_known(cluster_state_dir: Path, address: str, port: int, keytype: str, key: str) -> None:
    """Trust a host key that is known from elsewhere (the lab made it). `key` is its base64 text."""
    KnownHosts.of(cluster_state_dir).put([HostKey(host_name(address, port), keytype, key)])
