"""What the outer machine lends to the machines: apt sources, pip settings, resolver."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.lab import lending
from k3ctl.lab.process import LabFailed

DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb-src
URIs: http://mirror.example/debian
Suites: bookworm
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: https://packages.example/tool
Suites: bookworm
Components: stable
"""


def test_deb822_becomes_one_line_entries() -> None:
    signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    assert list(lending.parse_sources(DEB822, deb822=True)) == [
        f"deb {signed} http://mirror.example/debian bookworm main contrib",
        f"deb {signed} http://mirror.example/debian bookworm-updates main contrib",
        "deb https://packages.example/tool bookworm stable",
    ]


def test_one_line_entries_without_comments_and_sources() -> None:
    text = "# no\ndeb  http://a.example/u jammy   main # why\ndeb-src http://a.example/u jammy main\n\n"
    assert list(lending.parse_sources(text, deb822=False)) == ["deb http://a.example/u jammy main"]


@pytest.mark.parametrize(
    ("entry", "kept"),
    [
        ("deb http://a.example/d bookworm main", True),
        ("deb http://a.example/d bookworm-security main", True),
        ("deb [signed-by=/usr/share/keyrings/ubuntu-archive-keyring.gpg] http://a.example/d bookworm main", True),
        ("deb [trusted=yes] file:/srv/mirror bookworm main", True),
        ("deb http://a.example/d bookworm-pgdg main", False),
        ("deb http://a.example/d bookworm stable", False),
        ("deb http://a.example/d trixie main", False),
        ("deb [signed-by=/etc/apt/keyrings/tool.gpg] http://a.example/d bookworm main", False),
    ],
)
def test_only_the_distribution_s_own_archive_is_lent(entry: str, kept: bool) -> None:
    assert lending.archive_entries([entry], "bookworm") == ((entry,) if kept else ())


def test_a_mirror_list_of_a_cloud_image_is_resolved(tmp_path: Path) -> None:
    mirrors = tmp_path / "debian.list"
    mirrors.write_text("# mirrors\nhttp://first.example/debian\nhttp://second.example/debian\n")
    entry = f"deb mirror+file:{mirrors} bookworm main"
    assert lending.archive_entries([entry], "bookworm") == ("deb http://first.example/debian bookworm main",)


def test_no_source_is_an_error_with_the_folder(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.example/d trixie main\n")
    with pytest.raises(LabFailed) as caught:
        lending.apt_sources("bookworm", tmp_path)
    assert caught.value.problems[0].file == str(tmp_path)


def test_apt_options_are_proxy_certificates_and_dates() -> None:
    dump = "\n".join(
        (
            'APT::Architecture "amd64";',
            'Acquire::http::Proxy "http://proxy.example:3128";',
            'Acquire::https::mirror.example::CaInfo "/etc/ca.pem";',
            'Acquire::Check-Valid-Until "false";',
            'Acquire::Languages "";',
            'Acquire::Retries "3";',
            'Acquire::http::Proxy "";',
        )
    )
    assert lending.apt_options(dump) == (
        'Acquire::http::Proxy "http://proxy.example:3128";',
        'Acquire::https::mirror.example::CaInfo "/etc/ca.pem";',
        'Acquire::Check-Valid-Until "false";',
        'Acquire::Retries "3";',
    )


def test_pip_settings_add_up_as_pip_s_do() -> None:
    texts = (
        "[global]\nfind-links = /w\nindex-url = https://a.example/simple\n",
        "not ini",
        "[install]\nfind-links = /w /v\n[global]\nindex-url = https://b.example/simple\n",
    )
    found = lending.pip_settings(texts, {"PIP_EXTRA_INDEX_URL": "file:///x/simple", "HOME": "/r", "PIP_QUIET": "1"})
    assert found == {
        "find-links": "/w /v",
        "index-url": "https://b.example/simple",
        "extra-index-url": "file:///x/simple",
    }
    assert lending.pip_conf(found).startswith("[global]\nindex-url = https://b.example/simple\n")
    assert lending.pip_conf({}) == ""


def test_local_folders_are_those_that_exist(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "index/simple").mkdir(parents=True)
    found = lending.local_folders(
        {
            "find-links": f"{tmp_path}/wheels https://a.example/x {tmp_path}/none",
            "extra-index-url": f"file://{tmp_path}/index/simple/",
        }
    )
    assert found == (f"{tmp_path}/wheels", f"{tmp_path}/index")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["nameserver 10.0.0.53\nsearch a.example\n"], "nameserver 10.0.0.53\nsearch a.example\n"),
        (["nameserver 127.0.0.53\n", "nameserver 192.0.2.1\n"], "nameserver 192.0.2.1\n"),
        (["nameserver fd00::1\nnameserver 192.0.2.1\n"], "nameserver 192.0.2.1\n"),
        (["nameserver 127.0.0.53\n"], ""),
        ([], ""),
    ],
)
def test_the_resolver_is_one_that_a_machine_can_reach(texts: list[str], expected: str) -> None:
    assert lending.resolver(texts) == expected
