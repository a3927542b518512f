"""`python -m k3ctl`."""

from k3ctl.cli import main

main()
