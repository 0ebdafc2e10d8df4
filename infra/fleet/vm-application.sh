#!/usr/bin/env bash
# What a VM Application runs in the folder where it has unpacked the offline archive:
# install (also for an update) and remove. The configuration file of the application lies
# beside it as bridge.toml.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=infra/lib.sh
. "$here/lib.sh"

config=$root$settings/bridge.toml
given=$here/bridge.toml
note=$root$settings/bridge.toml.fleet # the sum of what was written here last

sum_of_file() { sha256sum <"$1" 2>/dev/null | cut -d' ' -f1; }

# is_ours: the file may be replaced: nobody has changed what was written here, or it is
# the example that install.sh puts there.
is_ours() {
  [ -f "$config" ] || return 0
  case $(sum_of_file "$config") in
    "$(cat "$note" 2>/dev/null)" | "$(sum_of_file "$here/systemd/bridge.toml")") return 0 ;;
  esac
  return 1
}

# configure: take the configuration file of the application, where there is one.
configure() {
  if [ ! -f "$given" ]; then
    say "= $config: the application brings no configuration"
  elif cmp -s "$given" "$config"; then
    say "= $config"
    sum_of_file "$config" >"$note"
  elif is_ours; then
    say "+ write $config"
    account # to which the file is given before it is in its place
    folder "$settings" 0750 sebridge
    [ ! -f "$config" ] || cp -p "$config" "$config.before"
    (umask 077 && rm -f "$config.new" && cp "$given" "$config.new")
    own "$settings/bridge.toml.new" 0640 sebridge
    mv "$config.new" "$config"
    sum_of_file "$config" >"$note"
  else
    say "! $config was changed by hand, and stays"
  fi
}

# take_back: the new configuration or the new version is not right: as it was before.
take_back() {
  if [ -f "$config.before" ]; then
    say "! $config is again what it was"
    mv "$config.before" "$config"
    sum_of_file "$config" >"$note"
    own "$settings/bridge.toml" 0640 sebridge
    if [ -z "$root" ] && systemctl is-enabled --quiet sebridge.service 2>/dev/null; then
      run systemctl restart sebridge.service
    fi
  fi
  exit 1
}

need_root
case ${1:-} in
  install)
    rm -f "$config.before"
    configure
    bash "$here/install.sh" || take_back # by name: /var may be noexec
    own "$settings/bridge.toml" 0640 sebridge
    rm -f "$config.before"
    ;;
  remove) bash "$here/uninstall.sh" ;;
  *) fail "usage: vm-application.sh install|remove" 2 ;;
esac
