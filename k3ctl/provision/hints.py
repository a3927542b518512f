"""What to do about failures of a play that people meet often."""

from __future__ import annotations

# (texts, one of which is in the message, in lower case; what to do). First match wins.
_HINTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("another package manager", "could not get lock", "unable to acquire the dpkg", "failed to lock apt"),
        "another apt or dpkg runs there: wait until it ends (`ps` by the pid above) and run the same command again",
    ),
    (("no space left on device", "not enough free space"), "free some space there (`df -h / /var`) and run it again"),
    (
        ("dpkg was interrupted", "unmet dependencies", "held broken packages"),
        "repair the packages there: `sudo dpkg --configure -a && sudo apt-get --fix-broken install`",
    ),
    (
        (
            "temporary failure resolving",
            "could not resolve",
            "failed to fetch",
            "unable to fetch",
            "failed to update apt",
        ),
        "give the host a way to its package mirror: DNS, proxy and firewall (`sudo apt-get update` there shows more)",
    ),
    (
        ("is not valid yet", "certificate is not yet valid", "not live until"),
        "set the host's clock: `sudo timedatectl set-time ...`, or let it reach a time server",
    ),
    (
        ("host key verification failed", "remote host identification has changed"),
        "look at the host's key and trust it: `k3ctl trust`",
    ),
    (
        ("privilege escalation", "a password is required", "is not in the sudoers"),
        "let this user run sudo: without a password, or with ansible_become_password in the inventory",
    ),
    (
        (
            "failed to connect to the host",
            "connection timed out",
            "connection refused",
            "no route to host",
            "broken pipe",
        ),
        "look whether the host is up and answers ssh, then run the same command again",
    ),
    (
        ("capability", "cap_sys_resource"),
        "use a platform whose profile says `memlock: false` where no RDMA is used, or run on the machine itself",
    ),
    (
        ("leads to", "nsswitch"),
        "correct /etc/hosts or the `hosts:` line of /etc/nsswitch.conf there, then run it again",
    ),
)
_ELSE = "correct the cause on the host, then run the same command again: it goes on from what is done"


def hint(message: str) -> str:
    """What to do about a task's failure, from its message."""
    text = message.lower()
    for needles, advice in _HINTS:
        if any(needle in text for needle in needles):
            return advice
    return _ELSE
