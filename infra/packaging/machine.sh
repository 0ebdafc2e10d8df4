#!/usr/bin/env bash
# machine.sh ROOT FILES: becomes the systemd of a machine whose disk is ROOT, with a network
# of its own that leads nowhere. Nothing is written to ROOT; FILES is /files there. To be
# called as `unshare -n -m -p -C -f --kill-child bash machine.sh ROOT FILES`.
set -euo pipefail
mount --make-rprivate /
scratch=$(mktemp -d)
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch"/{changes,work,root}
root=$scratch/root
mount -t overlay overlay \
  -o "lowerdir=$1,upperdir=$scratch/changes,workdir=$scratch/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do cp -a "/dev/$device" "$root/dev"; done
ln -s pts/ptmx "$root/dev/ptmx"
mkdir "$root"/dev/{shm,pts} "$root/files"
mount --bind "$2" "$root/files"
umount -R "$root/sys/fs/cgroup" 2>/dev/null || true
if [ -d /sys/fs/cgroup/systemd ]; then # version 1
  mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
  mkdir "$root/sys/fs/cgroup/systemd"
  mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
else
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
fi
# Not chroot: the sandbox of a unit moves the root, and that must be a mount.
mkdir "$root/run/before"
cd "$root"
pivot_root . run/before
umount -l /run/before
exec /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  SYSTEMD_LOG_TARGET=console SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 \
  /lib/systemd/systemd --system --unit=multi-user.target
