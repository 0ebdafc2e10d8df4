#!/usr/bin/env bash
# Takes away what install.sh made. Configuration, secrets and state stay, unless --purge.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=infra/lib.sh
. "$here/lib.sh"

usage() {
  cat <<'TEXT'
usage: [DESTDIR=…] infra/uninstall.sh [--hub] [--dry-run] [--purge] [--packaged]

  --hub      the hub in place of the forwarder: sebridge-hub in each name
  --dry-run  print what would be done, and do nothing
  --purge    also remove /etc/sebridge with its hooks, /var/lib/sebridge (what is not
             delivered yet is lost), /var/lib/sebridge-hooks, drop-ins of your own, and
             the account
  --packaged leave what the .deb and the .rpm hold as files
TEXT
}

purge=no
packaged=no
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry_run=yes ;;
    --purge) purge=yes ;;
    --packaged) packaged=yes ;;
    --hub) hub ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && fail "unknown argument: $1" 2 ;;
  esac
  shift
done
need_root

# gone PATH: remove it, where it is there.
gone() {
  if [ -e "$root$1" ] || [ -L "$root$1" ]; then run rm -rf -- "$root$1"; fi
}

# on_service COMMAND…: as on_machine, but not where no systemd runs.
on_service() {
  if [ "$dry_run" = yes ] || [ -d /run/systemd/system ]; then on_machine "$@"; fi
}

# around: take away what stands around the forwarder's service.
around() {
  # The socket first: the next probe would start the service again.
  [ ! -e "$root$units/sebridge-traffic.socket" ] ||
    on_service systemctl disable --now sebridge-traffic.socket
  for wants in "$root$units"/*.wants/sebridge-hook@*.path; do
    [ ! -L "$wants" ] || on_service systemctl disable --now "${wants##*/}"
  done
  gone "$units/sebridge-hook@.path"
  gone "$units/sebridge-hook@.service"
  gone "$units/sebridge-traffic.socket"
  gone "$units/sebridge.service.d/traffic.conf"
}

is_hub || around
if [ -e "$root$units/$service" ] || [ "$packaged" = yes ]; then
  on_service systemctl disable --now "$service"
fi
gone "$units/$service"
gone "$units/$service.d/credentials.conf"
drop_ins=$root$units/$service.d
if [ -d "$drop_ins" ] && [ -z "$(ls -A "$drop_ins")" ]; then run rmdir "$drop_ins"; fi
on_service systemctl daemon-reload
if [ "$(readlink "$root$command")" = "$program/bin/sebridge" ]; then
  run rm -f -- "$root$command"
fi
is_hub || gone "$completion"
gone "$program"
gone "$versions"

if [ "$purge" = yes ]; then
  gone "$units/$service.d"
  gone "$settings"
  gone "$state"
  gone "$state-hooks"
  gone "$accounts/$name.conf"
  if getent passwd "$name" >/dev/null; then on_machine userdel "$name"; fi
fi
