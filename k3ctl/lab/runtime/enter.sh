#!/bin/sh
# Runs in mount and process namespaces of its own (unshare -m -p --kill-child): whatever is mounted here is gone when
# the last process ends, however it ends.
#   enter.sh BASE SCRATCH PREFIX PYTHON CACHE [FOLDER ...]
# BASE is the machines' base system, read only; SCRATCH holds upper/, work/, root/ and given/ (what the install needs);
# CACHE keeps downloads; FOLDERs are lent read-only at their own path (pip's local indexes). Then install.sh runs
# inside, as root.
set -eu
base=$1 scratch=$2 prefix=$3 python=$4 cache=$5
shift 5
root=$scratch/root
mount -t overlay k3ctl-runtime -o "lowerdir=$base,upperdir=$scratch/upper,workdir=$scratch/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mkdir -p "$root/run/k3ctl"
mount --bind "$scratch/given" "$root/run/k3ctl"
mkdir -p "$root/run/k3ctl/cache"
mount --bind "$cache" "$root/run/k3ctl/cache"
for folder in "$@"; do
  mkdir -p "$root$folder"
  mount --bind "$folder" "$root$folder"
  mount -o remount,bind,ro "$root$folder"
done
rm -f "$root/etc/resolv.conf"
cp "$scratch/given/resolv.conf" "$root/etc/resolv.conf"
exec chroot "$root" /bin/sh /run/k3ctl/install.sh "$prefix" "$python"
