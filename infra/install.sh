#!/usr/bin/env bash
# Installs the forwarder as a systemd service: that of this clone, of a wheel, or of the
# wheels that lie beside this script. Run it again after a change of any of them, of
# bridge.toml or of /etc/sebridge/secrets: what is as it should be stays as it is.
set -euo pipefail
umask 022
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=infra/lib.sh
. "$here/lib.sh"

usage() {
  cat <<'TEXT'
usage: [PYTHON=…] [DESTDIR=…] infra/install.sh [--hub] [--dry-run] [--no-start] [--traffic]
       [--hook NAME=FILE]… [--wheel FILE] [--packaged]
       infra/install.sh [--hub] --rollback

  --hub         the hub in place of the forwarder: sebridge-hub in each of the names below,
                hub.toml; it has no --traffic and no --hook
  --dry-run     print what would be done, and do nothing
  --no-start    install, but neither enable nor start the service
  --traffic     let systemd hold the listener of [traffic], so that a restart refuses no
                balancer; from then on that is kept at each run
  --hook NAME=FILE
                make FILE the hook /etc/sebridge/hooks/NAME, which root runs for a sink
                with unit = "sebridge-hook@NAME.service"; bridge.toml is given that sink
  --wheel FILE  install this wheel and not the clone, also where the version is the same
  --packaged    leave out what the .deb and the .rpm hold as files
  --rollback    use the version before the present one again, and restart

  PYTHON    which Python, 3.11 or newer (default: python3, else the newest that is there)
  DESTDIR   install into a tree, such as an image's: no account is made, nothing started.
            The tree can be moved; its Python must lie where PYTHON does here

What it makes: the account sebridge; /opt/sebridge-versions (the program: the present
version and the one before) with the link /opt/sebridge to the present one, a link to its
command in /usr/local/bin and its completion for bash; /etc/sebridge (configuration; bridge.toml is
never overwritten); /etc/systemd/system/sebridge.service and
sebridge.service.d/credentials.conf, which loads each file of /etc/sebridge/secrets; with
--traffic sebridge-traffic.socket and sebridge.service.d/traffic.conf; with --hook
/etc/sebridge/hooks, sebridge-hook@.path and sebridge-hook@.service.

The service is restarted if something has changed. If the new version does not get ready,
the one before is used again, and the exit code is 1.
TEXT
}

start=yes
traffic=no
packaged=no
maker=archive
rollback=no
package=$(dirname "$here")
wanted=()
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry_run=yes ;;
    --no-start) start=no ;;
    --traffic) traffic=yes ;;
    --packaged) packaged=yes maker=package ;;
    --hub) hub ;;
    --rollback) rollback=yes ;;
    --hook)
      [[ $# -ge 2 && $2 == *=* ]] || fail "--hook wants NAME=FILE" 2
      hook_name "${2%%=*}" || fail "--hook: a name is letters, digits, '-' and '_'" 2
      [ -f "${2#*=}" ] || fail "--hook: there is no file ${2#*=}" 2
      wanted+=("$2")
      shift
      ;;
    --wheel)
      [ $# -ge 2 ] || fail "--wheel wants a file" 2
      [ -f "$2" ] || fail "--wheel: there is no file $2" 2
      package=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
      shift
      ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && fail "unknown argument: $1" 2 ;;
  esac
  shift
done
if is_hub && [ "$traffic${wanted[*]+x}" != no ]; then
  fail "--traffic and --hook are the forwarder's, not the hub's" 2
fi
need_root
# shellcheck source=infra/program.sh
. "$here/program.sh"
if [ "$rollback" = yes ]; then
  back
  exit
fi
choose_python
if [ -z "$root" ] && [ "$dry_run" = no ]; then
  version=$(systemctl --version 2>/dev/null | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
  [ "${version:-0}" -ge 247 ] || fail "systemd 247 or newer is needed: LoadCredential"
fi

# Names of credentials become a unit's lines: nothing else may stand in them.
credentials() {
  local file name
  printf '# Written by infra/install.sh from the files in %s.\n' "$settings/secrets"
  printf '[Service]\n'
  for file in "$root$settings/secrets"/*; do
    [ -f "$file" ] || continue
    name=${file##*/}
    printf 'LoadCredential=%s:%s\n' "$name" "$settings/secrets/$name"
  done
}

for file in "$root$settings/secrets"/*; do
  [[ ! -f $file || ${file##*/} =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] ||
    fail "$file: a secret's name is letters, digits, '.', '_' and '-'"
done

say "# account"
if [ "$packaged" = yes ]; then
  on_machine systemd-sysusers "/usr/lib/sysusers.d/$name.conf"
else
  account
fi

say "# program"
stage
try "$wanted_version"

if [ "$packaged" = no ]; then
  say "# command"
  if [ "$(readlink "$root$command")" = "$program/bin/sebridge" ]; then
    say "= $root$command"
  elif [ -e "$root$command" ]; then
    say "! $root$command is not this one, and stays"
  else
    [ -d "$root${command%/*}" ] || run mkdir -p "$root${command%/*}"
    run ln -sfn "$program/bin/sebridge" "$root$command"
  fi
  if ! is_hub; then
    [ -d "$root${completion%/*}" ] || run mkdir -p "$root${completion%/*}"
    put "$completion" 0644 root <"$here/systemd/completion.bash"
  fi
fi

say "# configuration"
folder "$settings" 0750 "$name"
folder "$settings/secrets" 0700 root
if [ -f "$root$settings/$toml" ]; then
  say "= $root$settings/$toml"
else
  put "$settings/$toml" 0640 "$name" <"$here/systemd/$toml"
fi

# Root's alone, with all that is above: the launcher runs nothing else.
if ! is_hub && { [ ${#wanted[@]} -gt 0 ] || [ -d "$root$hooks" ]; }; then
  say "# hooks"
  folder "$hooks" 0755 root
  put "$hooks/hook.sh" 0644 root <"$here/hooks/hook.sh"
  for hook in ${wanted[@]+"${wanted[@]}"}; do
    put "$hooks/${hook%%=*}" 0755 root <"${hook#*=}"
  done
  folder "${launcher%/*}" 0755 root
  [ -d "$root$units" ] || run mkdir -p "$root$units"
  put "$launcher" 0644 root <"$here/systemd/hook_launcher.py"
  for unit in sebridge-hook@.path sebridge-hook@.service; do
    put "$units/$unit" 0644 root <"$here/systemd/$unit"
  done
  for hook in ${wanted[@]+"${wanted[@]}"}; do
    ask_for "${hook%%=*}"
  done
fi

say "# service"
[ -d "$root$units/$service.d" ] || run mkdir -p "$root$units/$service.d"
if [ "$packaged" = no ]; then
  put "$units/$service" 0644 root <"$here/systemd/$service"
elif [ -f "$root$units/$service" ]; then
  say "! $root$units/$service is used, and not that of the package: remove it"
fi
credentials | put "$units/$service.d/credentials.conf" 0644 root
is_hub || [ ! -f "$root$units/sebridge-traffic.socket" ] || traffic=yes
if [ "$traffic" = yes ]; then
  put "$units/sebridge-traffic.socket" 0644 root <"$here/systemd/sebridge-traffic.socket"
  put "$units/sebridge.service.d/traffic.conf" 0644 root <"$here/systemd/traffic.conf"
fi
on_service systemctl daemon-reload
for hook in ${wanted[@]+"${wanted[@]}"}; do
  on_service systemctl enable --now "sebridge-hook@${hook%%=*}.path"
done
configured() { grep -q '^[[:space:]]*\[' "$root$settings/$toml" 2>/dev/null; }
if [ "$traffic" = yes ] && ! grep -q '^[[:space:]]*\[traffic\]' \
  "$root$settings/bridge.toml" 2>/dev/null; then
  say "! $settings/bridge.toml has no [traffic]: nobody would answer the probe"
fi
if [ "$start" = yes ] && ! configured; then
  on_machine systemctl enable "$service"
  say "! $settings/$toml has no settings yet: edit it, then restart $service"
  note
elif [ "$start" = yes ]; then
  or_back check
  on_machine systemctl enable "$service"
  if [ "$traffic" = yes ] && ! systemctl is-active --quiet \
    sebridge-traffic.socket 2>/dev/null; then
    # A running forwarder holds the port itself, and is to let go of it first.
    on_service systemctl stop sebridge.service
    on_service systemctl enable --now sebridge-traffic.socket
  fi
  or_back start_anew
fi
proved
tidy
