# shellcheck shell=bash
# What install.sh and uninstall.sh share. Every change goes through `run` or `put`, which
# say what they do; with --dry-run they only say it.

program=/opt/sebridge
settings=/etc/sebridge
state=/var/lib/sebridge
units=/etc/systemd/system
accounts=/etc/sysusers.d
command=/usr/local/bin/sebridge
hooks=$settings/hooks
launcher=$program/libexec/hook_launcher.py
completion=/usr/local/share/bash-completion/completions/sebridge
export program settings state units accounts command completion hooks launcher

root=${DESTDIR:-}
root=${root%/}
dry_run=no

fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit "${2:-1}"
}

say() { printf '%s\n' "$*"; }

# run COMMAND [ARGUMENT]…: print it, then do it.
run() {
  say "+ $(printf '%q ' "$@")"
  [ "$dry_run" = yes ] || "$@"
}

# on_machine COMMAND [ARGUMENT]…: as run, but not for a tree under DESTDIR.
on_machine() { [ -n "$root" ] || run "$@"; }

# hook_name TEXT: whether it can be the name of a hook.
hook_name() { [[ $1 =~ ^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$ ]]; }

# folder PATH MODE GROUP
folder() {
  [ -d "$root$1" ] || run mkdir -p "$root$1"
  own "$@"
}

# put TARGET MODE GROUP: write standard input there, where it is not there already.
put() {
  local text
  text=$(cat && printf x)
  if [ -f "$root$1" ] && [ "$(cat "$root$1" && printf x)" = "$text" ]; then
    say "= $root$1"
  else
    say "+ write $root$1"
    [ "$dry_run" = yes ] || printf '%s' "${text%x}" >"$root$1"
  fi
  own "$@"
}

# own PATH MODE GROUP: root's, and readable to GROUP as MODE says.
own() {
  local have
  have=$(stat -c '%a %U:%G' "$root$1" 2>/dev/null || true)
  [ "${have%% *}" = "${2#0}" ] || run chmod "$2" "$root$1"
  [ "${have##* }" = "root:$3" ] || on_machine chown "root:$3" "$root$1"
}

need_root() {
  if [ -z "$root" ] && [ "$dry_run" = no ] && [ "$(id -u)" -ne 0 ]; then
    fail "must be run as root; --dry-run shows what it would do"
  fi
}
