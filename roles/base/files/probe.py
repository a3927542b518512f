"""Looks at a node for the role `base` and prints one JSON object; changes nothing. Python 3.8, standard library.

usage: probe.py NOFILE SERVICES PACKAGE...
"""

import fcntl
import json
import os
import resource
import struct
import subprocess
import sys

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
# struct flock of 64-bit Linux: type, whence, start, length, pid of the holder
FLOCK = "hhqqi4x"


def holder(path):
    """The process that holds a lock of apt or dpkg: {lock, pid, name}, or None."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, asked))
    finally:
        os.close(handle)
    if kind == fcntl.F_UNLCK:
        return None
    return {"lock": path, "pid": pid, "name": name_of(pid)}


def name_of(pid):
    """Command line of a process, or its short name; '?' when it is already gone."""
    for part in ("cmdline", "comm"):
        try:
            with open(f"/proc/{pid}/{part}", "rb") as file:
                text = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        if text:
            return text[:120]
    return "?"


def missing(packages):
    """Those packages that are not fully installed."""
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages]
    listing = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, timeout=60)
    found = {line.split()[0] for line in listing.stdout.decode().splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in found]


def interrupted():
    """True when dpkg was cut off and wants `dpkg --configure -a` (apt judges by the same folder)."""
    try:
        return any(name.isdigit() for name in os.listdir("/var/lib/dpkg/updates"))
    except OSError:
        return False


def highest(kind, wanted):
    """`wanted` when the hard limit can be set so high here, else the hard limit as it is.

    A PAM limit that cannot be set locks everybody out of ssh, so it is tried first.
    """
    old = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (old[0], wanted))
        resource.setrlimit(kind, old)
    except (OSError, ValueError):
        return old[1]
    return wanted


def running(services):
    """The first of the services that is active, or ''."""
    for service in services:
        state = subprocess.run(["systemctl", "is-active", "--quiet", service], check=False, timeout=20)
        if state.returncode == 0:
            return service
    return ""


def main(argv):
    """Print what was found."""
    nofile, services, packages = int(argv[1]), argv[2].split(","), argv[3:]
    report = {
        "missing": missing(packages),
        "interrupted": interrupted(),
        "holders": [found for found in map(holder, LOCKS) if found],
        "container": os.path.exists("/run/systemd/container"),
        "memlock": highest(resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY) == resource.RLIM_INFINITY,
        "nofile": highest(resource.RLIMIT_NOFILE, nofile),
        "time_service": running(services),
        "cloud_init": os.path.isdir("/etc/cloud/cloud.cfg.d"),
    }
    if report["holders"] and (report["missing"] or report["interrupted"]):
        # On stderr, where whoever repeats this look finds a line to show.
        names = ["{name} (pid {pid}) holds {lock}".format(**item) for item in report["holders"]]
        sys.stderr.write("waiting for another package manager: " + ", ".join(names))
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main(sys.argv)
