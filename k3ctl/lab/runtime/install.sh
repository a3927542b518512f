#!/bin/sh
# Inside the base system: makes the environment at PREFIX, its final path, since a venv knows its own path.
#   install.sh PREFIX PYTHON
# /run/k3ctl holds lock.txt, torch.txt, pip.conf and pip itself (of the machine outside: the base has none).
# Lines that begin with "k3ctl: " are for people.
set -eu
prefix=$1
python=$prefix/bin/python
export PIP_CONFIG_FILE=/run/k3ctl/pip.conf PIP_CACHE_DIR=/run/k3ctl/cache PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore HOME=/root LC_ALL=C.UTF-8 TMPDIR=/tmp

install() {
  PYTHONPATH=/run/k3ctl "$python" -m pip install --no-deps --no-compile --only-binary=:all: "$@"
}

"$2" -m venv --without-pip "$prefix"
echo "k3ctl: fetching torch (about 190 MB)"
# Where pip's own settings lead to no CPU build, its publisher's index has it.
install -r /run/k3ctl/torch.txt || install --index-url https://download.pytorch.org/whl/cpu -r /run/k3ctl/torch.txt
echo "k3ctl: fetching $(grep -c == /run/k3ctl/lock.txt) packages (about 200 MB)"
install -r /run/k3ctl/lock.txt

echo "k3ctl: taking out what serving does not need"
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
# vLLM looks up the distribution `vllm` and takes the CPU platform when its version says so; this one holds no code.
shim=$site/vllm-0.32.0+cpu.dist-info
mkdir "$shim"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$shim/METADATA"
: >"$shim/RECORD"
rm -rf "$site/torch/test" "$site/torch/include" "$site/torch/share"
find "$site/torch/bin" -mindepth 1 -not -name torch_shm_manager -delete
for package in numpy sympy networkx mpmath; do
  find "$site/$package" -depth -type d -name tests -exec rm -rf {} +
done

echo "k3ctl: compiling Python files"
# Checked by nothing at run time: archives and clocks may change times, and nobody may write here later.
"$python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$site" >/dev/null || true
echo "k3ctl: importing the engine"
VLLM_NO_USAGE_STATS=1 "$python" - <<'PYTHON'
import torch
import vllm
from vllm.platforms import current_platform

assert torch.__version__ == "2.13.0+cpu", torch.__version__
assert current_platform.is_cpu(), current_platform
current_platform.import_kernels()
assert hasattr(torch.ops._C, "init_cpu_memory_env"), "vLLM's compiled kernels do not load on this machine"
PYTHON
