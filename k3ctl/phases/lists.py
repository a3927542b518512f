"""The ordered list of phases of every command: the table of contents of the product."""

from __future__ import annotations

from k3ctl.phases.base import Phase
from k3ctl.phases.burn_in import BurnIn
from k3ctl.phases.connect import Connect
from k3ctl.phases.launch import Launch
from k3ctl.phases.preflight import Preflight
from k3ctl.phases.provision import Provision
from k3ctl.phases.ready import Ready
from k3ctl.phases.remove import Remove
from k3ctl.phases.runtime import Runtime
from k3ctl.phases.smoke import Smoke
from k3ctl.phases.stage import Stage
from k3ctl.phases.stop import Stop

UP: tuple[Phase, ...] = (
    Connect(),
    Preflight(),
    Provision(),
    Runtime(),
    Stage(),
    BurnIn(),
    Launch(),
    Ready(),
    Smoke(),
)
START: tuple[Phase, ...] = (Connect(), Launch(), Ready(), Smoke())
STOP: tuple[Phase, ...] = (Connect(), Stop())
DOWN: tuple[Phase, ...] = (Connect(), Stop(), Remove())
