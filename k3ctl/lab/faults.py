"""What `lab fault` can break: each fault is two lists of commands, one that makes it and one that takes it back.

Commands run on the outer machine, or as root inside the machine. Faults of links outlast a reboot of the machine;
those inside it (mounts, listeners) do not, and clearing them then finds nothing to do.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from k3ctl.errors import ConfigError, Problem
from k3ctl.lab.definition import LabDefinition, LabHost

Options = Mapping[str, str]


@dataclass(frozen=True)
class Step:
    """One command. `where`: on the outer machine or inside the machine (as root)."""

    where: Literal["outer", "machine"]
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """One kind of fault. `options` are its options with their defaults; `make` and `undo` build the commands."""

    name: str
    title: str
    make: Callable[[LabDefinition, LabHost, Options], list[Step]]
    undo: Callable[[LabDefinition, LabHost, Options], list[Step]]
    options: Mapping[str, str] = field(default_factory=dict)


def outer(*argv: str) -> Step:
    """A command on the outer machine."""
    return Step("outer", argv)


def inner(*argv: str) -> Step:
    """A command as root inside the machine."""
    return Step("machine", argv)


def _link(lab: LabDefinition, host: LabHost, options: Options) -> tuple[str, str]:
    """(outer end, name inside) of the link that the option `network` names."""
    if options["network"] == "management":
        return lab.layout.management_link(host.index), "eth0"
    return lab.layout.fabric_link(host.index), "eth1"


def _space(lab: LabDefinition, host: LabHost) -> tuple[str, ...]:
    return ("ip", "netns", "exec", lab.layout.unit(host.name))


def _delete_table(space: tuple[str, ...], table: str) -> Step:
    """Deleting a table that is not there is an error to nft: add it first, in the same transaction."""
    return outer(*space, "nft", f"add table {table}; delete table {table}")


# --- link-down: the outer end goes down, so that inside the carrier is lost, as with a pulled cable ----------------


def _link_down(lab: LabDefinition, host: LabHost, options: Options) -> list[Step]:
    return [outer("ip", "link", "set", _link(lab, host, options)[0], "down")]


def _link_up(lab: LabDefinition, host: LabHost, options: Options) -> list[Step]:
    return [outer("ip", "link", "set", _link(lab, host, options)[0], "up")]


# --- partition: both machines live, their frames do not cross the bridge -------------------------------------------


def _partition_table(lab: LabDefinition, host: LabHost, options: Options) -> str:
    return f"{lab.layout.prefix}-part{host.index}-{lab.host(options['peer']).index}"


def _partition(lab: LabDefinition, host: LabHost, options: Options) -> list[Step]:
    peer = lab.host(options["peer"])
    if peer.name == host.name:
        raise ConfigError(Problem(what="a machine cannot be parted from itself", found=peer.name, key="peer"))
    here, there = _link(lab, host, options)[0], _link(lab, peer, options)[0]
    table = _partition_table(lab, host, options)
    rules = [
        f"add table bridge {table}",
        f"add chain bridge {table} forward {{ type filter hook forward priority 0; }}",
        f"add rule bridge {table} forward iifname {here} oifname {there} drop",
        f"add rule bridge {table} forward iifname {there} oifname {here} drop",
    ]
    return [outer("nft", "; ".join(rules))]


def _unpartition(lab: LabDefinition, host: LabHost, options: Options) -> list[Step]:
    return [_delete_table((), f"bridge {_partition_table(lab, host, options)}")]


# --- mtu: the machine's own interface ------------------------------------------------------------------------------


def _mtu(lab: LabDefinition, host: LabHost, options: Options) -> list[Step]:
    name = _link(lab, host, options)[1]
    return [outer(*_space(lab, host), "ip", "link", "set", name, "mtu", options["mtu"])]


def _mtu_back(lab: LabDefinition, host: LabHost, options: Options) -> list[Step]:
    return _mtu(lab, host, {**options, "mtu": "1500"})


# --- firewall: the machine's own nftables drop one port, silently --------------------------------------------------


def _firewall(lab: LabDefinition, host: LabHost, options: Options) -> list[Step]:
    table = f"lab-fault-{options['port']}"
    rules = [
        f"add table inet {table}",
        f"add chain inet {table} input {{ type filter hook input priority 0; }}",
        f"add rule inet {table} input iifname != lo tcp dport {options['port']} drop",
    ]
    return [outer(*_space(lab, host), "nft", "; ".join(rules))]


def _firewall_off(lab: LabDefinition, host: LabHost, options: Options) -> list[Step]:
    return [_delete_table(_space(lab, host), f"inet lab-fault-{options['port']}")]


# --- full-disk: a small file system over the path; what was there is hidden, not lost -------------------------------


def _full_disk(_lab: LabDefinition, _host: LabHost, options: Options) -> list[Step]:
    size = f"size={options['leave']},mode=755"
    return [
        inner("mkdir", "-p", options["path"]),
        inner("mount", "-t", "tmpfs", "-o", size, "k3ctl-lab-fault", options["path"]),
    ]


def _disk_back(_lab: LabDefinition, _host: LabHost, options: Options) -> list[Step]:
    path = shlex.quote(options["path"])
    return [inner("sh", "-c", f"if mountpoint -q {path}; then umount --lazy {path}; fi")]


# --- port-in-use ---------------------------------------------------------------------------------------------------

_LISTEN = (
    "import socket,signal; s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1);"
    " s.bind(('0.0.0.0',{port})); s.listen(); signal.pause()"
)


def _port(_lab: LabDefinition, _host: LabHost, options: Options) -> list[Step]:
    program = _LISTEN.format(port=int(options["port"]))
    unit = f"--unit=lab-fault-port-{options['port']}"
    return [inner("systemd-run", "--quiet", "--collect", unit, "/usr/bin/python3", "-c", program)]


def _port_free(_lab: LabDefinition, _host: LabHost, options: Options) -> list[Step]:
    unit = f"lab-fault-port-{options['port']}.service"
    return [inner("sh", "-c", f"if systemctl is-active -q {unit}; then systemctl stop {unit}; fi")]


# --- wrong-hosts ---------------------------------------------------------------------------------------------------


def _hosts(_lab: LabDefinition, _host: LabHost, options: Options) -> list[Step]:
    line = f"{options['address']} {options['name']} # lab-fault"
    # first line: the resolver takes the first match
    return [
        inner("sh", "-c", f'printf "%s\\n" {shlex.quote(line)} | cat - /etc/hosts > /run/h && cat /run/h > /etc/hosts')
    ]


def _hosts_back(_lab: LabDefinition, _host: LabHost, _options: Options) -> list[Step]:
    return [inner("sed", "-i", "/# lab-fault$/d", "/etc/hosts")]


# --- rate-limit: both directions, at the two ends of the link ------------------------------------------------------


def _rate(lab: LabDefinition, host: LabHost, options: Options) -> list[Step]:
    end, name = _link(lab, host, options)
    shape = ("root", "tbf", "rate", options["rate"], "burst", "64kb", "latency", "200ms")
    return [
        outer("tc", "qdisc", "replace", "dev", end, *shape),
        outer(*_space(lab, host), "tc", "qdisc", "replace", "dev", name, *shape),
    ]


def _rate_off(lab: LabDefinition, host: LabHost, options: Options) -> list[Step]:
    end, name = _link(lab, host, options)
    return [
        outer("tc", "qdisc", "replace", "dev", end, "root", "noqueue"),
        outer(*_space(lab, host), "tc", "qdisc", "replace", "dev", name, "root", "noqueue"),
    ]


# --- second-default-route: over the fabric, and better than the real one (metric 100) -------------------------------


def _route(lab: LabDefinition, host: LabHost, _options: Options) -> list[Step]:
    way = ("default", "via", str(lab.fabric[1]), "dev", "eth1", "metric", "50")
    return [outer("ip", "-n", lab.layout.unit(host.name), "route", "replace", *way)]


def _route_back(lab: LabDefinition, host: LabHost, _options: Options) -> list[Step]:
    return [outer("ip", "-n", lab.layout.unit(host.name), "route", "flush", "exact", "0.0.0.0/0", "dev", "eth1")]


_FABRIC = {"network": "fabric"}
CATALOGUE: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("link-down", "a network cable is pulled", _link_down, _link_up, _FABRIC),
        Fault("partition", "two machines cannot reach each other", _partition, _unpartition, {"peer": "", **_FABRIC}),
        Fault("mtu", "a smaller MTU on one side", _mtu, _mtu_back, {"mtu": "1400", **_FABRIC}),
        Fault("firewall", "a local firewall drops a TCP port", _firewall, _firewall_off, {"port": "29400"}),
        Fault(
            "full-disk",
            "a path has little room",
            _full_disk,
            _disk_back,
            {"path": "/srv/k3ctl/weights", "leave": "10M"},
        ),
        Fault("port-in-use", "something else listens on a port", _port, _port_free, {"port": "8000"}),
        Fault("wrong-hosts", "a wrong line in /etc/hosts", _hosts, _hosts_back, {"name": "", "address": "192.0.2.1"}),
        Fault("rate-limit", "a slow link", _rate, _rate_off, {"rate": "10mbit", "network": "management"}),
        Fault("second-default-route", "a default route over the fabric wins", _route, _route_back),
    )
}


def chosen(fault: Fault, given: Options, lab: LabDefinition, host: LabHost) -> dict[str, str]:
    """The fault's options with what was given. ConfigError names every option that is wrong or lacking. Pure."""
    problems = [
        Problem(
            what=f"fault {fault.name} has no option `{key}`",
            found=key,
            expected=", ".join(fault.options) or "no options",
        )
        for key in given
        if key not in fault.options
    ]
    options = {**fault.options, **given}
    others = [h.name for h in lab.hosts if h.name != host.name]
    for key in ("peer", "name"):
        if key in options and not options[key]:
            if len(others) == 1:
                options[key] = others[0]
            else:
                problems.append(
                    Problem(
                        what=f"fault {fault.name} needs option `{key}`",
                        expected=f"-s {key}={'|'.join(others) or 'NAME'}",
                    )
                )
    if options.get("network", "fabric") not in ("fabric", "management"):
        problems.append(
            Problem(what="no such network", found=options["network"], expected="fabric or management", key="network")
        )
    for key in ("port", "mtu"):
        if key in options and not options[key].isdigit():
            problems.append(Problem(what=f"option {key} is a number", found=options[key], key=key))
    if not options.get("path", "/").startswith("/"):
        problems.append(Problem(what="option path is an absolute path", found=options["path"], key="path"))
    if problems:
        raise ConfigError(*problems)
    return options
