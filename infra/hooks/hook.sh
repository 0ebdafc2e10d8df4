# shellcheck shell=sh
# What the hooks of this folder share. A hook reads this file, defines `prepare` and
# `restore`, and ends with `hook "$@"`. It must lie beside the hook, as
# infra/install.sh --hook puts it.
#
# Settings are read from the file NAME.conf beside the hook NAME; in each, SHADOW=yes lets the
# hook only say what it would do. What a hook has done is
# noted in a file, the marker: restore undoes what stands there, and nothing else.
set -eu
umask 077
LC_ALL=C
export LC_ALL
# shellcheck disable=SC2034 # the hooks use it
again=75 # the exit code after which the bridge runs a hook again

name=${0##*/}
folder=$(cd "$(dirname "$0")" && pwd)

say() { printf '%s\n' "$*"; }

# fail TEXT [EXIT CODE]
fail() {
  printf '%s: %s\n' "$name" "$1" >&2
  exit "${2:-1}"
}

is_test() { [ "${SEBRIDGE_TEST:-}" = 1 ]; }

# run COMMAND [ARGUMENT]…: change something; a test only prints it.
run() {
  if is_test; then
    say "would run: $*"
  else
    say "+ $*"
    "$@"
  fi
}

# needs TOOL…: end where one is missing.
needs() {
  for tool in "$@"; do
    command -v "$tool" >/dev/null || fail "$tool is needed and not installed"
  done
}

# trust PATH: end where others than root and this account may write it.
trust() {
  odd=$(find -L "$1" -prune \
    \( ! -user 0 ! -user "$(id -u)" -o -perm -020 -o -perm -002 \) -print)
  [ -z "$odd" ] || fail "$1 must belong to root, and nobody else may write it"
}

# number TEXT DEFAULT: TEXT where it is a whole number, else DEFAULT.
number() {
  case ${1#-} in
    '' | *[!0-9]*) say "$2" ;;
    *) say "$1" ;;
  esac
}

# patience MOST: how many seconds to wait: MOST, or what is left of the notice less 5 s.
patience() {
  most=$(number "$1" 60)
  left=$(($(number "${SEBRIDGE_NOTICE_SECONDS:-}" "$((most + 5))") - 5))
  [ "$left" -ge 0 ] || left=0
  [ "$left" -le "$most" ] || left=$most
  say "$left"
}

# wait_until SECONDS COMMAND [ARGUMENT]…: false where it does not come true in time.
wait_until() {
  end=$(($(date +%s) + $1))
  shift
  until "$@"; do
    [ "$(date +%s)" -lt "$end" ] || return 1
    sleep 1
  done
}

# is_marked LINE: whether the marker has this line.
is_marked() { [ -f "$marker" ] && grep -qxF -e "$1" "$marker"; }

# marked: every line of the marker.
marked() { cat "$marker"; }

# mark LINE: note it on the disk before it is done, once.
mark() {
  if is_test || is_marked "$1"; then return 0; fi
  printf '%s\n' "$1" >>"$marker"
  sync "$marker" 2>/dev/null || sync
}

# unmark LINE: it is undone.
unmark() {
  if is_test; then return 0; fi
  grep -vxF -e "$1" "$marker" >"$marker.new" || true
  mv "$marker.new" "$marker"
}

# check: end where the command in CHECK does not succeed; the bridge asks again later.
check() {
  [ -n "${CHECK:-}" ] || return 0
  run sh -c "$CHECK" || fail "CHECK has not succeeded: nothing is restored yet" "$again"
}

# hook [ARGUMENT]…: do what SEBRIDGE_ACTION says, one at a time.
hook() {
  case ${SEBRIDGE_ACTION:-} in
    prepare | restore) ;;
    *) fail "SEBRIDGE_ACTION must be prepare or restore; the bridge sets it" 64 ;;
  esac
  if ! is_test; then
    mkdir -p "$STATE"
    if [ "${HOOK_IS_LOCKED:-}" != "$$" ]; then
      # The lock ends with this process, and what it starts does not hold it.
      needs flock
      # shellcheck disable=SC2016 # it is the shell within that knows its number
      exec flock --close "$STATE/$name.lock" \
        sh -c 'HOOK_IS_LOCKED=$$ exec "$0" "$@"' "$folder/$name" "$@"
    fi
  fi
  if [ "$SEBRIDGE_ACTION" = prepare ]; then
    prepare
  elif [ ! -s "$marker" ]; then
    say "nothing to restore: this hook has changed nothing"
  elif [ -n "${SEBRIDGE_OTHER_EVENTS:-}" ]; then
    say "nothing is restored yet: another event waits: $SEBRIDGE_OTHER_EVENTS"
  else
    restore
    run rm -f "$marker"
  fi
}

if [ -f "$folder/$name.conf" ]; then
  trust "$folder/$name.conf"
  # shellcheck source=/dev/null # each hook says which settings it has
  . "$folder/$name.conf"
fi
if [ "${SHADOW:-no}" = yes ]; then
  SEBRIDGE_TEST=1
  say "shadow: nothing is changed"
fi
if [ -z "${STATE:-}" ]; then
  STATE=/var/lib/sebridge-hooks
  [ "$(id -u)" -eq 0 ] || STATE=${HOME:-/var/lib/sebridge}/hooks
fi
marker=$STATE/$name.done
