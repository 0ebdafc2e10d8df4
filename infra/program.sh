# shellcheck shell=bash disable=SC2154
# What install.sh does with versions of the program: choose a Python, make a version
# beside the present one, start it, see whether it gets ready, and go back.

patience=${PATIENCE:-90} # seconds in which a version has to get ready

# on_service COMMAND…: as on_machine, but not where no systemd runs, such as in a chroot.
on_service() {
  if [ "$dry_run" = yes ] || [ -d /run/systemd/system ]; then on_machine "$@"; fi
}

is_right() {
  "$1" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# choose_python: into $python.
choose_python() {
  if [ -n "${PYTHON:-}" ]; then
    python=$PYTHON
    is_right "$python" ||
      fail "$python must be Python 3.11 or newer with venv (Debian: python3-venv)"
    return
  fi
  for python in python3 python3.14 python3.13 python3.12 python3.11; do
    if is_right "$python"; then return; fi
  done
  fail "Python 3.11 or newer with venv is needed (Debian: python3-venv; RHEL 9: python3.11)"
}

# sum_of FILE…: of what they hold and how they are named.
sum_of() { sha256sum -- "$@" | sha256sum | cut -c 1-12; }

# name_version: into $wanted_version, by all that the program is made of. The same
# version number says nothing: a wheel may have been built anew.
name_version() {
  local sum found
  found=$("$python" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3], sys.executable)' \
    2>/dev/null || echo 3)
  if [ -d "$here/wheels" ] && [ "$package" = "$(dirname "$here")" ]; then
    sum=$(cd "$here" && sum_of wheels/* requirements.txt)
  elif [ -d "$package" ]; then
    sum=$(cd "$package" && find bridge -type f ! -name '*.pyc' -print0 | LC_ALL=C sort -z |
      xargs -0 sha256sum -- pyproject.toml constraints.txt | sha256sum | cut -c 1-12)
  else
    sum=$(cd "$(dirname "$package")" && sum_of "$(basename "$package")")
  fi
  wanted_version=$(printf '%s\n' "$sum" "$found" | sha256sum | cut -c 1-12)
}

# stage: make the wanted version beside the present one.
stage() {
  local folder
  name_version
  folder=$root$versions/$wanted_version
  if [ -f "$folder/whole" ]; then
    say "= $folder"
    return
  fi
  run rm -rf -- "$folder"
  run mkdir -p "$root$versions"
  if [ -d "$here/wheels" ] && [ "$package" = "$(dirname "$here")" ]; then
    from_wheels "$folder"
  else
    run "$python" -m venv "$folder"
    run "$folder/bin/pip" install --quiet --disable-pip-version-check \
      --constraint "$(dirname "$here")/constraints.txt" "${package}[$extras]"
  fi
  run movable "$folder"
  run touch "$folder/whole"
}

# from_wheels FOLDER: of the wheels beside this script, without a network or a compiler.
# Each must have the hash that was looked at when they were put together.
from_wheels() {
  local pip own
  pip=$(echo "$here"/wheels/pip-*.whl)
  own=$(echo "$here"/wheels/scheduled_events_bridge-*.whl)
  (cd "$here" && sha256sum --quiet --check SHA256SUMS) || fail "$here: a file is damaged"
  run "$python" -m venv --without-pip "$1"
  run "$1/bin/python" -I "$pip/pip" --isolated install --quiet --disable-pip-version-check \
    --no-index --find-links "$here/wheels" --require-hashes --no-deps \
    --requirement "$here/requirements.txt"
  run "$1/bin/python" -I "$pip/pip" --isolated install --quiet --disable-pip-version-check \
    --no-index --no-deps "$own"
  # What the program says of how to add to it (bridge/foundation/errors.py).
  run sh -c "echo $maker >'$1/installed'"
}

# try VERSION: use it, and note which ones were in use before, for the way back. A run that
# was cut off has left its note: what it switched to is not proved, and no way back.
try() {
  local note=$root$versions/trial
  last_version=$(current)
  older_version=$(previous)
  if [ -f "$note" ]; then
    read -r last_version older_version <"$note" || true
    say "! the run before was cut off: the way back is $last_version"
  elif [ "$dry_run" = no ] && [ -n "$last_version" ] && [ "$last_version" != "$1" ]; then
    printf '%s %s\n' "$last_version" "$older_version" >"$note"
  fi
  switch "$1"
  if [ -f "$note" ] && [ "$last_version" != "$1" ]; then
    link "$versions/previous" "$last_version"
  elif [ "$last_version" != "$(current)" ]; then
    last_version=$(previous)
  fi
}

# proved: the version in use is not tried any more.
proved() {
  if [ -f "$root$versions/trial" ]; then run rm -f -- "$root$versions/trial"; fi
}

# tidy: remove the versions that are neither the present one nor the one before.
tidy() {
  local folder
  for folder in "$root$versions"/*/; do
    folder=${folder%/}
    if [ ! -d "$folder" ] || [ -L "$folder" ]; then continue; fi
    case ${folder##*/} in
      "$(current)" | "$(previous)" | "$wanted_version") ;;
      *) run rm -rf -- "$folder" ;;
    esac
  done
}

# check: does this version take the configuration?
check() {
  on_machine env "CREDENTIALS_DIRECTORY=$settings/secrets" \
    "$program/bin/sebridge" check -c "$settings/$toml"
}

# answers: does a forwarder answer on its port? Its state file is not opened: root has
# no business in the files of the account.
answers() {
  env "CREDENTIALS_DIRECTORY=$settings/secrets" "$program/bin/sebridge" status --live \
    -c "$settings/$toml" >/dev/null 2>&1
}

# fingerprint: of the program and the unit. What the service was started with stands in
# $versions/started.
fingerprint() {
  current
  { cat "$units/$service" "$units/$service.d"/*.conf \
    /usr/lib/systemd/system/"$service" 2>/dev/null || true; } | sha256sum
}

# note: the next start of the service, by whomever, is with all of this.
note() {
  if [ "$dry_run" = no ] && [ -z "$root" ]; then fingerprint >"$versions/started"; fi
}

# is_started: the service runs with this program, unit, configuration and secrets.
is_started() {
  local since
  systemctl is-active --quiet "$service" || return 1
  [ "$(cat "$versions/started" 2>/dev/null)" = "$(fingerprint)" ] || return 1
  # Whole seconds would not do: the file may be of the second of the start.
  since=$(systemctl show --timestamp=us+utc -p ExecMainStartTimestamp --value "$service")
  since=$(date -d "$since" +@%s.%N)
  [ -z "$(find "$settings/$toml" "$settings/secrets" -newermt "$since" 2>/dev/null)" ]
}

# start_anew: restart the service if something has changed, and wait until it is ready.
start_anew() {
  local answered=no
  if [ "$dry_run" = yes ] || [ -n "$root" ] || [ ! -d /run/systemd/system ]; then
    on_service systemctl restart "$service"
    return
  fi
  if is_started; then
    say "= $service runs with all of this"
    return
  fi
  if answers; then answered=yes; fi
  run systemctl restart "$service" || return 1
  is_ready "$answered" || return 1
  note
}

# is_ready ANSWERED: wait until the service runs and, if it answered on its port before,
# answers again; and runs for 5 s without a restart.
is_ready() {
  local end restarts
  end=$((SECONDS + patience))
  until systemctl is-active --quiet "$service" && { [ "$1" = no ] || answers; }; do
    [ $SECONDS -lt $end ] || return 1
    sleep 1
  done
  restarts=$(systemctl show -p NRestarts --value "$service")
  sleep 5
  systemctl is-active --quiet "$service" &&
    [ "$restarts" = "$(systemctl show -p NRestarts --value "$service")" ]
}

# or_back COMMAND: what must go well with the new version, else the one before is used.
or_back() {
  if "$@"; then return; fi
  if [ -z "$(previous)" ] || [ "$last_version" = "$(current)" ]; then
    fail "the service does not get ready: journalctl -u $name"
  fi
  say "! this version does not get ready: the one before is used again"
  switch "$last_version"
  [ "$rollback" = yes ] || forget
  proved
  if [ -d /run/systemd/system ]; then run systemctl restart "$service"; fi
  fail "the version before is in use again; what was wrong: journalctl -u $name"
}

# forget: remove the version that failed; before the present one is what was before.
forget() {
  run rm -rf -- "$root$versions/$wanted_version"
  if [ -n "$older_version" ]; then
    link "$versions/previous" "$older_version"
  else
    run rm -f -- "$root$versions/previous"
  fi
}

# back: use the version before the present one.
back() {
  last_version=$(current)
  if [ -z "$(previous)" ] || [ ! -d "$root$versions/$(previous)" ]; then
    fail "there is no version before this one"
  fi
  switch "$(previous)"
  on_service systemctl daemon-reload
  if [ "$dry_run" = no ] && [ -z "$root" ] &&
    systemctl is-active --quiet "$service" 2>/dev/null; then
    or_back start_anew
  fi
  proved
}
