"""`python -m k3ctl.edge.ansible_dump`: read an inventory with Ansible's loader and print it as JSON.

A process of its own, because Ansible keeps its configuration, warnings and file caches in globals, prints as it
likes, and reads ansible.cfg and ANSIBLE_* variables on import. One JSON object on stdin:
    sources: absolute paths of inventory files, basedir: folder for relative lookups,
    encrypted: absolute paths of whole-file vaults, vault: [[id, absolute path of its password file]]
One JSON object on stdout: hosts {name: {variable: {value, file, line, secret, error}}}, groups {name: [host]},
warnings [text], failures [{what, found, fix, file, line}]. Secrets are in it in clear: it goes through a pipe only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

RESOLVED = ("ansible_", "k3ctl_")  # names with these prefixes are templated; others stay as written
SECRET_NAMES = ("_password", "_pass", "_passphrase", "_private_key", "_token", "_secret", "api_key")
_MAGIC = (  # variables that Ansible adds to every host
    "groups", "group_names", "inventory_hostname", "inventory_hostname_short", "inventory_file", "inventory_dir",
    "ansible_facts", "playbook_dir", "ansible_playbook_python", "ansible_config_file", "ansible_version", "omit",
    "hostvars", "environment", "vars", "ansible_check_mode", "ansible_diff_mode", "ansible_forks",
    "ansible_inventory_sources", "ansible_verbosity",
)  # fmt: skip
_HOW_TO_OPEN = "set ANSIBLE_VAULT_PASSWORD_FILE, or ANSIBLE_VAULT_IDENTITY_LIST, to a file or script"


def main() -> int:
    """Read the request, answer on the real stdout; whatever Ansible prints goes to stderr."""
    request = json.loads(sys.stdin.read())
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump(dump(request), answer)
    answer.close()
    return 0


def dump(request: dict[str, Any]) -> dict[str, Any]:
    """What Ansible makes of the sources. Never raises for a bad inventory: `failures` say what is wrong."""
    from ansible.errors import AnsibleError  # noqa: PLC0415 - importing Ansible is what this process is for

    warnings = _listen()
    failures: list[dict[str, Any]] = []
    result: dict[str, Any] = {"hosts": {}, "groups": {}, "warnings": warnings, "failures": failures}
    try:
        loader = _loader(request, failures)
        if not failures:
            _read(loader, request, result)
    except AnsibleError as error:
        failures.append(_failure(error))
    return result


def _listen() -> list[str]:
    """Collect Ansible's warnings and deprecations instead of printing them."""
    from ansible.utils.display import Display  # noqa: PLC0415

    collected: list[str] = []
    display = Display()
    display.warning = lambda msg, *_, **__: collected.append(str(msg))
    display.error_as_warning = lambda msg, exception, *_, **__: collected.append(f"{msg or ''} {exception}".strip())
    display.error = lambda msg, *_, **__: collected.append(str(msg))
    display.deprecated = lambda *_, **__: None
    return collected


def _loader(request: dict[str, Any], failures: list[dict[str, Any]]) -> Any:
    """A loader with the vault secrets; every vault file is opened once, so that each bad one is named."""
    from ansible.errors import AnsibleError  # noqa: PLC0415
    from ansible.parsing.dataloader import DataLoader  # noqa: PLC0415
    from ansible.parsing.vault import VaultSecretsContext, get_file_vault_secret  # noqa: PLC0415

    loader = DataLoader()
    loader.set_basedir(request["basedir"])
    secrets = []
    for name, path in request["vault"]:
        try:
            secret = get_file_vault_secret(filename=path, vault_id=name, loader=loader)
            secret.load()
            secrets.append((name, secret))
        except AnsibleError as error:
            what = "the vault password cannot be read"
            failures.append({"what": what, "found": _short(error), "file": path, "fix": "correct the file or script"})
    loader.set_vault_secrets(secrets)
    VaultSecretsContext._current = None  # `initialize` refuses a second call in one process (tests)
    VaultSecretsContext.initialize(VaultSecretsContext(secrets))
    for path in request["encrypted"] if not failures else ():
        try:
            loader.get_text_file_contents(path)
        except AnsibleError as error:
            failures.append(_vault_failure(error, path, bool(secrets)))
    return loader


def _read(loader: Any, request: dict[str, Any], result: dict[str, Any]) -> None:
    from ansible.inventory.manager import InventoryManager  # noqa: PLC0415
    from ansible.template import Templar  # noqa: PLC0415
    from ansible.vars.manager import VariableManager  # noqa: PLC0415

    inventory = InventoryManager(loader=loader, sources=request["sources"])
    manager = VariableManager(loader=loader, inventory=inventory)
    for name, group in inventory.groups.items():
        result["groups"][name] = [host.name for host in group.get_hosts()]
    hidden = set(_hidden(loader, request["encrypted"]))
    for host in inventory.get_hosts():
        everything = manager.get_vars(host=host)
        templar = Templar(loader=loader, variables=everything)
        result["hosts"][host.name] = {
            str(key): _variable(key, value, templar, hidden) for key, value in everything.items() if key not in _MAGIC
        }


def _hidden(loader: Any, encrypted: list[str]) -> Iterator[str]:
    """Names of the variables that stand in whole-file vaults."""
    for path in encrypted:
        data = loader.load_from_file(path, cache="none")
        if isinstance(data, dict):
            yield from (str(key) for key in data)


def _variable(name: Any, raw: Any, templar: Any, hidden: set[str]) -> dict[str, Any]:
    """One variable: value as plain JSON, origin, whether it is a secret, and why it has no value."""
    from ansible.errors import AnsibleError  # noqa: PLC0415

    file, line = _origin(raw, name)
    secret = str(name) in hidden or str(name).endswith(SECRET_NAMES) or _from_vault(raw)
    try:
        if str(name).startswith(RESOLVED):
            # A template that names a vaulted variable makes a secret, too.
            secret = secret or (isinstance(raw, str) and "{{" in raw and any(word in raw for word in hidden))
            raw = templar.template(raw)
        value, error = _plain(raw), ""
    except AnsibleError as problem:
        value, error = None, _reason(problem)
    except Exception as problem:  # noqa: BLE001 - lookups and filters run foreign code; its error is the user's answer
        value, error = None, f"{type(problem).__name__}: {problem}"
    return {"value": value, "file": file, "line": line, "secret": secret, "error": error}


def _from_vault(raw: Any) -> bool:
    from ansible.parsing.vault import EncryptedString  # noqa: PLC0415

    if isinstance(raw, EncryptedString):
        return True
    if isinstance(raw, dict):
        return any(_from_vault(item) for item in raw.values())
    return isinstance(raw, list) and any(_from_vault(item) for item in raw)


def _origin(*candidates: Any) -> tuple[str, int | None]:
    """File and line of the first candidate that carries them: true, false and null carry none, their names do."""
    from ansible._internal._datatag._tags import Origin  # noqa: PLC0415

    for candidate in candidates:
        origin = Origin.get_tag(candidate)
        if origin and origin.path:
            return str(origin.path), origin.line_num
    return "", None


def _plain(value: Any) -> Any:
    """Tagged and encrypted values as plain JSON types; dates as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    return str(value)


def _failure(error: Any) -> dict[str, Any]:
    if _is_vault(error):
        return _vault_failure(error, _origin(getattr(error, "obj", None))[0], None)
    file, line = _origin(getattr(error, "obj", None))
    return {"what": f"Ansible cannot read the inventory: {_short(error)}", "file": file, "line": line}


def _vault_failure(error: Any, path: str, given: bool | None) -> dict[str, Any]:  # noqa: FBT001
    if given:
        return {"what": "the vault password does not open this file", "file": path, "fix": _HOW_TO_OPEN}
    if given is None:
        return {"what": f"a vault cannot be opened: {_short(error)}", "file": path, "fix": _HOW_TO_OPEN}
    return {"what": "the file is encrypted and no vault password is given", "file": path, "fix": _HOW_TO_OPEN}


def _is_vault(error: BaseException | None) -> bool:
    from ansible.parsing.vault import AnsibleVaultError  # noqa: PLC0415

    while error is not None:
        if isinstance(error, AnsibleVaultError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: Any) -> str:
    if _is_vault(error) or "ecrypt" in str(error):
        return f"its vault cannot be opened; {_HOW_TO_OPEN}"
    return _short(error)


def _short(error: Any) -> str:
    """The message without the source excerpt that Ansible adds: it may show secrets."""
    return str(getattr(error, "message", error)).split("\n")[0].strip()


if __name__ == "__main__":
    sys.exit(main())
