"""What went wrong on the way to a host, in words: one function for each kind, all pure."""

from __future__ import annotations

import errno
import socket

from k3ctl.edge.known_hosts import HostKey
from k3ctl.edge.ssh_route import Hop
from k3ctl.errors import Problem

NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


def who(hop: Hop, *, jump: bool) -> str:
    """The subject of a message: `the host`, or the jump host by its name."""
    return f"the jump host {hop.label}" if jump else "the host"


def not_connected(hop: Hop, error: OSError, seconds: float, *, jump: bool) -> Problem:
    """A TCP connection that did not come about: each cause in its own words."""
    name = who(hop, jump=jump)
    place = f"{hop.host} port {hop.port}"
    expected = f"an SSH server at {place}"
    where = "ProxyJump in ansible_ssh_common_args" if jump else "ansible_host and ansible_port in the inventory"
    if isinstance(error, socket.gaierror):
        what, found = f"the name of {name} cannot be resolved", f"`{hop.host}`: {error.strerror or error}"
        fix = f"correct {where}, or make the name resolve on this machine (`getent hosts {hop.host}`)"
    elif isinstance(error, ConnectionRefusedError):
        what, found = f"{name} refuses the connection", f"{place}: refused, nothing listens there"
        fix = f"check that sshd runs there and on which port, or correct {where}"
    elif isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        what, found = f"{name} does not answer", f"{place}: no answer within {seconds:.0f} s"
        fix = f"check that the host is up and that no firewall drops port {hop.port}, or correct {where}"
    elif error.errno in NO_ROUTE:
        what, found = f"there is no route to {name}", f"{place}: {error.strerror}"
        fix = f"check the network or VPN of this machine (`ip route get {hop.host}`), or correct {where}"
    else:
        what, found = f"{name} cannot be reached", f"{place}: {error.strerror or error}"
        fix = f"check the network of this machine, or correct {where}"
    return Problem(what=what, found=found, expected=expected, fix=fix)


def not_forwarded(via: Hop, hop: Hop, reason: str, code: int, seconds: float) -> Problem:
    """The jump host was reached, but could not go on. `code` 1: not allowed, 2: not reached, 0: no answer."""
    if code == 1:
        return Problem(
            what=f"the jump host {via.label} forbids to go on from it",
            found=f"to {hop.host} port {hop.port}: {reason}",
            expected="a jump host that forwards TCP connections",
            fix="allow it there: `AllowTcpForwarding yes` (or `local`) and PermitOpen in its sshd_config",
        )
    return Problem(
        what=f"the jump host {via.label} cannot reach the host",
        found=f"to {hop.host} port {hop.port}: {reason} after {seconds:.1f} s (the jump host itself was reached)",
        expected=f"an SSH server at {hop.host} port {hop.port}, seen from the jump host",
        fix=f"try it there: `ssh {via.user}@{via.host} -p {via.port} nc -vz {hop.host} {hop.port}`; the name and the "
        "address must be those that the jump host knows",
    )


def not_answered(hop: Hop, reason: str, seconds: float) -> Problem:
    """A node could not open a TCP connection to an address that was asked for through it."""
    return Problem(
        what=f"nothing answers at {hop.host} port {hop.port}, asked from the host itself",
        found=f"{reason} after {seconds:.1f} s",
        expected=f"a server at {hop.host} port {hop.port}",
        fix="see what runs there: `k3ctl status`, `k3ctl logs`; sshd there must allow AllowTcpForwarding",
    )


def proxy_failed(command: str, reason: str) -> Problem:
    """The inventory's ProxyCommand gave no connection."""
    return Problem(
        what="the ProxyCommand of the inventory gives no connection",
        found=f"`{command}`: {reason}",
        expected="a program that connects its stdin and stdout with the host's SSH port",
        fix="run it by hand: it must show a line that starts with SSH-2.0",
    )


def no_ssh(hop: Hop, reason: str, *, jump: bool) -> Problem:
    """The port answers, but no SSH session came about before the login."""
    return Problem(
        what=f"{who(hop, jump=jump)} answers, but not as an SSH server that k3ctl can talk to",
        found=f"{hop.host} port {hop.port}: {reason}",
        expected="an SSH server (protocol 2, algorithms of this decade)",
        fix=f"look at what answers there: `ssh -v -p {hop.port} {hop.host}`; a server under load drops new connections "
        "(MaxStartups in its sshd_config)",
    )


def unknown_key(hop: Hop, seen: HostKey, inventory: str, *, jump: bool) -> Problem:
    """The host shows a key that nobody has trusted yet."""
    return Problem(
        what=f"{who(hop, jump=jump)} shows a host key that is not trusted yet",
        found=f"{hop.host} port {hop.port}: {seen.keytype} {seen.fingerprint}",
        expected="a key in this cluster's own known_hosts",
        fix=f"k3ctl trust {inventory}",
    )


def changed_key(hop: Hop, seen: HostKey, known: HostKey, inventory: str, file: str, *, jump: bool) -> Problem:
    """The host shows another key than the trusted one: a reinstalled host, or somebody in between."""
    return Problem(
        what=f"the host key of {who(hop, jump=jump)} has CHANGED: either it was reinstalled, or somebody is in between",
        found=f"{hop.host} port {hop.port}: {seen.keytype} {seen.fingerprint}",
        expected=f"{known.keytype} {known.fingerprint} (trusted in {file})",
        fix="compare the fingerprint on the host's own console (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`); "
        f"if it is right: `k3ctl trust {inventory} --replace {hop.host}`",
    )


def no_session(reason: str) -> Problem:
    """The login worked, but the host opens no session."""
    return Problem(
        what="the host opens no session",
        found=reason,
        expected="sessions on the open connection",
        fix="raise MaxSessions in its sshd_config (at least 4), and look into `journalctl -u ssh -n 50` there",
    )


def lost(argv: tuple[str, ...], seconds: float, limit: float) -> Problem:
    """The connection broke while a command ran."""
    bound = f"within {limit:.0f} s of its start at the latest" if limit else "by itself"
    return Problem(
        what="the connection broke while a command ran",
        found=f"`{' '.join(argv)[:120]}` after {seconds:.1f} s; it ends on the host {bound}",
        expected="an open connection",
        fix="check the network to the host and whether it rebooted, then run the same k3ctl command again",
    )


def no_shell(stdout: str, stderr: str) -> Problem:
    """The login worked, but the user's shell did not run the command."""
    return Problem(
        what="the login shell does not run commands",
        found=(stdout.strip() or stderr.strip() or "no output at all")[-300:],
        expected="a shell that runs `sh -c COMMAND`",
        fix="give the user a normal shell (`chsh -s /bin/bash USER`), and no ForceCommand in sshd_config",
        evidence=stderr.strip()[-800:],
    )


def no_sudo(user: str, stderr: str, *, with_password: bool) -> Problem:
    """The user may not become root the way that was tried."""
    text = stderr.strip()
    rule, file = f"{user} ALL=(ALL) NOPASSWD: ALL", "/etc/sudoers.d/k3ctl"
    sudoers = f"as root there: `echo '{rule}' > {file} && chmod 440 {file}`"
    if "not found" in text or "No such file" in text:
        what, fix = "sudo is missing", "as root there: `apt-get install -y sudo`, or use ansible_user=root"
    elif with_password:
        what, fix = "sudo does not accept the password", f"correct ansible_become_password; or, {sudoers}"
    elif "password is required" in text or "terminal is required" in text:
        what = "sudo asks for a password"
        fix = f"{sudoers}; or give ansible_become_password (in a vault file)"
    else:
        what, fix = f"user {user} may not use sudo", sudoers
    return Problem(
        what=what, found=text.splitlines()[-1] if text else "no answer", expected="root by `sudo -n`", fix=fix
    )
