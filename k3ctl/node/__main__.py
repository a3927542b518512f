"""`k3node VERB`: one JSON object on stdin, one JSON object (or, in follow modes, lines of JSON) on stdout.

Exit status: 0 done, 1 failed (reason on stderr), 2 usage. A verb is a module of this package with `run(payload)`.
"""

from __future__ import annotations

import importlib
import json
import sys

VERBS: tuple[str, ...] = ("probe", "reach", "fetch", "fetch-run", "unpack", "unpack-run", "verify")
VERBS += ("status", "start", "gang", "rank", "burnin", "stop", "logs", "lock")


def main(argv: list[str]) -> int:
    """Run one verb; the name must be in VERBS, so that nothing else can be imported."""
    if len(argv) < 2 or argv[1] not in VERBS:
        sys.stderr.write("usage: k3node VERB; verbs: %s\n" % ", ".join(VERBS))
        return 2
    module = importlib.import_module("k3ctl.node." + argv[1].replace("-", "_"))
    if hasattr(module, "main"):
        return int(module.main(argv[2:]))
    text = sys.stdin.read()
    reply = module.run(json.loads(text) if text.strip() else {})
    json.dump(reply, sys.stdout, sort_keys=True)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
