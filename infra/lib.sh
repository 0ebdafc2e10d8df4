# shellcheck shell=bash
# What install.sh and uninstall.sh share. Every change goes through `run` or `put`, which
# say what they do; with --dry-run they only say it.

# of NAME CONFIGURATION EXTRAS: what is installed, and so the places of its files.
of() {
  name=$1 toml=$2 extras=$3
  service=$name.service
  program=/opt/$name
  versions=/opt/$name-versions
  settings=/etc/$name
  state=/var/lib/$name
  command=/usr/local/bin/$name
}
of sebridge bridge.toml email,slack,template
hub() { of sebridge-hub hub.toml email,hub,slack,template; }
is_hub() { [ "$name" = sebridge-hub ]; }
units=/etc/systemd/system
accounts=/etc/sysusers.d
hooks=/etc/sebridge/hooks
launcher=/opt/sebridge/libexec/hook_launcher.py
completion=/usr/local/share/bash-completion/completions/sebridge
export toml extras service units command completion hooks launcher state

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

# ask_for NAME: have bridge.toml ask root for the hook, where no line of it does so yet.
# What check would refuse is not written: somebody else's file stays as it is.
ask_for() {
  local file=$root$settings/bridge.toml unit=sebridge-hook@$1.service
  if grep -qs "^[^#]*$unit" "$file"; then return; fi
  say "+ $file: a sink with unit = \"$unit\""
  if [ "$dry_run" = yes ]; then return; fi
  cp -p "$file" "$file.new"
  cat >>"$file.new" <<TEXT

[[sinks]]
name = "$1"
type = "command"
unit = "$unit"
[sinks.when]
event_types = $("$root$program/bin/python" -c 'import json
from bridge.events.vocabulary import DISRUPTIVE
print(json.dumps(DISRUPTIVE))')
TEXT
  if CREDENTIALS_DIRECTORY=$root$settings/secrets \
    "$root$program/bin/sebridge" check -c "$file.new" >/dev/null 2>&1; then
    mv "$file.new" "$file"
  else
    rm "$file.new"
    say "! $file wants a sink with unit = \"$unit\", and check refuses it there as it is"
  fi
}

# put TARGET MODE GROUP: write standard input there, where it is not there already.
put() {
  local text
  text=$(cat && printf x)
  if [ -f "$root$1" ] && [ "$(cat "$root$1" && printf x)" = "$text" ]; then
    say "= $root$1"
  else
    say "+ write $root$1"
    # Nobody else may read a new file before it is given to GROUP.
    [ "$dry_run" = yes ] || (umask 077 && printf '%s' "${text%x}" >"$root$1")
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

# account: make the account of the service, where it is not there already.
# shellcheck disable=SC2154 # $here: the folder of the script
account() {
  [ -d "$root$accounts" ] || run mkdir -p "$root$accounts"
  put "$accounts/$name.conf" 0644 root <"$here/systemd/sysusers${name#sebridge}.conf"
  on_machine systemd-sysusers "$accounts/$name.conf"
}

need_root() {
  if [ -z "$root" ] && [ "$dry_run" = no ] && [ "$(id -u)" -ne 0 ]; then
    fail "must be run as root; --dry-run shows what it would do"
  fi
}

# Versions of the program. $versions has a folder for each, which is not changed once it
# is whole; $program is a link to the one in use. So a forwarder that runs keeps the files
# that it began with, and the way back is a link.

# current: the name of the version in use; empty without one.
current() { name_of_link "$root$program"; }

# previous: the name of the version in use before it; empty without one.
previous() { name_of_link "$root$versions/previous"; }

name_of_link() { if [ -L "$1" ]; then basename "$(readlink "$1")"; fi; }

# link PATH TARGET: make a link, or have it name another target, in one step.
link() {
  run ln -sfn "$2" "$root$1.new"
  run mv -fT "$root$1.new" "$root$1"
}

# switch VERSION: use this version from now on, and keep in mind which one it was.
switch() {
  local last
  if [ -d "$root$program" ] && [ ! -L "$root$program" ]; then
    # The program itself, as pip or an older install.sh put it there.
    [ -d "$root$versions" ] || run mkdir -p "$root$versions"
    run mv -T "$root$program" "$root$versions/older"
    run ln -sfn "${versions##*/}/older" "$root$program"
    last=older
  else
    last=$(current)
  fi
  [ "$last" != "$1" ] || return 0
  # The launcher of hooks must be there at each moment: a hook may run now.
  if [ -d "$root$program/libexec" ] && [ ! -d "$root$versions/$1/libexec" ]; then
    run cp -a "$root$program/libexec" "$root$versions/$1/libexec"
  fi
  [ -z "$last" ] || link "$versions/previous" "$last"
  link "$program" "${versions##*/}/$1"
}

# Two lines that are shell and Python at once: the Python beside this file runs it.
beside() {
  cat <<'TEXT'
#!/bin/sh
'''exec' "$(dirname -- "$(readlink -f -- "$0")")/python" "$0" "$@"
' '''
TEXT
}

# movable FOLDER: let the commands of an environment find their Python beside them,
# wherever the folder is put.
movable() {
  local file lines
  for file in "$1"/bin/*; do
    if [ ! -f "$file" ] || [ -L "$file" ]; then continue; fi
    case $(head -n 2 "$file" | tr '\n' '|' | tr -d '\0') in
      "#!$1/bin/python"*) lines=2 ;;
      "#!/bin/sh|'''exec' "*"$1/bin/python"*) lines=4 ;;
      *) continue ;;
    esac
    { beside && tail -n "+$lines" "$file"; } >"$file.new"
    chmod 0755 "$file.new"
    mv "$file.new" "$file"
  done
  rm -f "$1"/bin/activate* "$1"/bin/Activate*
  if [ -f "$1/pyvenv.cfg" ]; then sed -i '/^command *=/d' "$1/pyvenv.cfg"; fi
  # pip has noted where its wheel lay: of a tree that is the builder's folder.
  for file in "$1"/lib/python3*/site-packages/scheduled_events_bridge-*/direct_url.json; do
    if [ -z "$root" ] || [ ! -f "$file" ]; then continue; fi
    sed -i 's|"file://[^"]*/\([^"/]*\)"|"file:///\1"|' "$file"
  done
}
