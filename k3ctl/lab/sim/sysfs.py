"""The part of /sys that RDMA tools read, made from a machine description."""

from __future__ import annotations

from k3ctl.lab.sim.machine import SimHca, SimMachine

# The kernel prints its numbers with the words: include/rdma/ib_verbs.h, enum ib_port_state and ib_port_phys_state.
_STATES = {"DOWN": "1: DOWN", "INIT": "2: INIT", "ACTIVE": "4: ACTIVE"}
_PHYSICAL = {"Polling": "2: Polling", "Disabled": "3: Disabled", "LinkUp": "5: LinkUp"}


def tree(machine: SimMachine) -> dict[str, str]:
    """Path below the sysfs root -> content. A path that ends in `/` is an empty folder."""
    files = {"class/infiniband/": "", "class/net/": ""}
    for hca in machine.hcas:
        files.update(_device(f"class/infiniband/{hca.name}", hca))
    return files


def _device(folder: str, hca: SimHca) -> dict[str, str]:
    port = f"{folder}/ports/1"
    return {
        f"{folder}/hca_type": f"{hca.type}\n",
        f"{folder}/fw_ver": f"{hca.firmware}\n",
        f"{folder}/board_id": f"{hca.board}\n",
        f"{folder}/node_guid": f"{hca.node_guid}\n",
        f"{folder}/device/net/{hca.netdev}/": "",
        f"{port}/state": f"{_STATES[hca.state]}\n",
        f"{port}/phys_state": f"{_PHYSICAL[hca.physical]}\n",
        f"{port}/link_layer": f"{hca.link_layer}\n",
        f"{port}/rate": f"{hca.rate}\n",
        f"{port}/counters/link_downed": "0\n",
    }
