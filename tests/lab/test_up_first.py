"""`k3ctl up` on hosts that nobody used before: said first, then done; and again, when there is nothing to do."""

from __future__ import annotations

import pytest

from tests.lab.up_fixtures import PHASES, Operator

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
# What k3ctl could change on a host, with times. Left out: what the engine and Ansible write by themselves.
LISTING = (
    "find /etc /opt /srv /var/lib/k3ctl /var/cache/apt/archives -path '/var/lib/k3ctl/*/*' -prune -o "
    "-printf '%p %y %m %U:%G %s %T@ %l\\n' 2>/dev/null | sort; systemctl list-units --all --plain --no-legend 'k3ctl*'"
)
AGAIN_S = 60.0  # promised are 15 s, on a machine that is idle
READS_ONLY = ("connect", "preflight")


@pytest.fixture(scope="module")
def bare(operator: Operator) -> Operator:
    """Machines as they come, and a controller that never saw them."""
    operator.make_lab(bare=True)
    return operator


def test_dry_run_on_bare_hosts_says_everything_and_changes_nothing(bare: Operator) -> None:
    before = bare.everywhere(LISTING)
    done = bare.run("up", "--dry-run", timeout_s=300)
    assert done.status == 0, done.err
    assert bare.everywhere(LISTING) == before
    assert bare.left() == []
    for node in bare.lab.nodes:
        assert f"provision: {node}: Set the limits of sessions\n--- " in done.out
        assert f"runtime: {node}: fetch " in done.out
        assert f"stage: {node}: fetch 14.5 MB of 14.5 MB of lab/kimi-k3-mini@" in done.out
        assert f"launch: {node}: install k3ctl-{bare.cluster}.service, " in done.out
        assert f"launch: {node}: start unit k3ctl-{bare.cluster}.service" in done.out
    for change in ("burn-in: run all-reduce", "launch: make an API key", "ready: wait for", "smoke: test: streaming"):
        assert change in done.out
    total = done.out.splitlines()[-1]
    assert total.startswith("dry run: ")
    assert total.endswith(" changes; nothing was changed")
    assert not (bare.folder / "secrets/api_key").exists()


def test_first_up_ends_at_an_endpoint_that_answers(bare: Operator) -> None:
    done = bare.up()
    report = done.json
    assert done.statuses == {phase: "unchanged" if phase in READS_ONLY else "changed" for phase in PHASES}
    assert report["ok"] is True
    assert report["endpoint"] == f"http://{bare.head}:8000"
    assert [node["name"] for node in report["nodes"]] == list(bare.lab.nodes)
    assert 0 < max(phase["seconds"] for phase in report["phases"].values()) < report["seconds"] <= done.seconds
    print({name: phase["seconds"] for name, phase in report["phases"].items()}, report["seconds"])
    status, text = bare.ask()
    assert (status, bool(text)) == (200, True)
    assert bare.ask(key=None)[0] == 401
    assert bare.ask(key="k3-wrong")[0] == 401
    assert bare.left() == []
    bare.alone()


def test_the_key_is_where_it_belongs_and_nowhere_else(bare: Operator) -> None:
    file = bare.folder / "secrets/api_key"
    key = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    others = [other for other in bare.folder.rglob("*") if other.is_file() and other != file]
    assert len(others) > 5  # the run directories among them
    assert [other for other in others if key in other.read_text(errors="replace")] == []
    for node in bare.lab.nodes:
        assert key not in bare.on(node, "cat /proc/[0-9]*/cmdline /var/log/k3ctl/*/*/* 2>/dev/null | tr '\\0' ' '")
        assert key not in bare.on(node, "journalctl --no-pager")
        holders = bare.on(
            node, f"grep -rlF -- {key} /etc /opt/k3ctl/node /srv /var/lib/k3ctl /tmp /home 2>/dev/null || true"
        )
        assert set(holders.split()) <= {f"/etc/k3ctl/{bare.cluster}/engine.env"}
        assert bare.on(node, f"stat -c '%a %U' /etc/k3ctl/{bare.cluster}/engine.env") == "600 root\n"


def test_again_is_no_change_and_fast(bare: Operator) -> None:
    engine = bare.engine()
    done = bare.up()
    assert done.statuses == dict.fromkeys(PHASES, "unchanged")
    assert all(phase["said"] and not phase["changes"] for phase in done.json["phases"].values())
    assert bare.engine() == engine
    print(f"up again: {done.seconds:.1f} s")
    assert done.seconds < AGAIN_S


def test_dry_run_after_that_has_nothing_to_say(bare: Operator) -> None:
    before = bare.everywhere(LISTING)
    done = bare.run("up", "--dry-run")
    assert done.status == 0, done.err
    assert done.out.splitlines()[-1] == "dry run: 0 changes; nothing was changed"
    assert [line.split(":")[:2] for line in done.out.splitlines()[:-1]] == [[phase, " no change"] for phase in PHASES]
    assert bare.everywhere(LISTING) == before


def test_only_from_and_limit(bare: Operator) -> None:
    engine = bare.engine()
    gang = ("burn-in", "launch", "ready", "smoke")
    only = bare.up("--only", "preflight")
    assert [name for name, status in only.statuses.items() if status != "skipped"] == ["connect", "preflight"]
    assert only.json["phases"]["stage"]["said"] == "--only preflight"
    later = bare.up("--from", "stage")
    assert [name for name, status in later.statuses.items() if status == "skipped"] == [
        "preflight",
        "provision",
        "runtime",
    ]
    assert later.statuses["smoke"] == "unchanged"
    last = bare.lab.nodes[-1]
    limited = bare.up("--limit", last)
    assert tuple(name for name, status in limited.statuses.items() if status == "skipped") == gang
    assert {limited.json["phases"][name]["said"] for name in gang} == {f"needs all nodes; --limit {last}"}
    assert bare.engine() == engine
    people = bare.run("up", "--limit", last)
    assert people.status == 0
    assert f"skipped: burn-in, launch, ready, smoke: needs all nodes; --limit {last}" in people.err
    assert "answer" not in people.out
    assert "endpoint" not in people.out


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--only", "stag", "did you mean --only stage?"),
        ("--from", "lunch", "did you mean --from launch?"),
        ("--limit", "nobody", "--limit nobody: no such node"),
    ],
)
def test_wrong_names_are_refused(bare: Operator, flag: str, value: str, said: str) -> None:
    done = bare.run("up", flag, value)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert f"{flag} {value}: no such" in done.err
