"""The command line: flags -> options -> phases; errors -> text and exit code; the composition root."""


def main() -> None:
    """Entry point."""
    raise SystemExit("k3ctl: not yet")
