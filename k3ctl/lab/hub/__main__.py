"""`python -m k3ctl.lab.hub`: serve a hub folder until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from k3ctl.lab.hub.api import PAGE
from k3ctl.lab.hub.faults import Faults
from k3ctl.lab.hub.links import LinkSigner
from k3ctl.lab.hub.log import RequestLog
from k3ctl.lab.hub.server import Hub, describe, serving
from k3ctl.lab.hub.store import HubStore


def main(argv: list[str] | None = None) -> int:
    """Serve; prints one line of JSON with the endpoint once it listens."""
    parser = argparse.ArgumentParser(prog="python -m k3ctl.lab.hub", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with repos/, blobs/, files/")
    parser.add_argument("--host", required=True, help="address to listen on")
    parser.add_argument("--port", type=int, required=True, help="port of the hub; 0 takes a free one")
    parser.add_argument("--cdn-port", type=int, help="port of the content network (default: the one after --port)")
    parser.add_argument("--faults", type=Path, help="fault script (JSON), read again whenever it changes")
    parser.add_argument("--log", type=Path, help="request log, one JSON object a line")
    parser.add_argument("--page", type=int, default=PAGE, help="most entries of one page of a tree listing")
    parser.add_argument("--link-seconds", type=float, default=3600.0, help="how long a signed link is good")
    args = parser.parse_args(argv)
    hub = Hub(
        store=HubStore(args.data),
        signer=LinkSigner(args.link_seconds),
        faults=Faults(args.faults),
        log=RequestLog(args.log),
        page=args.page,
    )
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    try:
        with serving(hub, args.host, args.port, args.cdn_port) as running:
            sys.stdout.write(describe(running) + "\n")
            sys.stdout.flush()
            over.wait()
    except OSError as error:
        sys.stderr.write(f"hub: cannot listen on {args.host}:{args.port}: {error.strerror}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
