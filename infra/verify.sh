#!/usr/bin/env bash
# Tries the artefacts where they are to be installed: on Debian 12 and 13 under their own
# systemd, with the network cut off. Slow, so that CI does not do it. Needs root, Debian's
# debootstrap, rpm, umoci and runc, and an environment with the extra [dev] on the PATH.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(dirname "$here")

usage() {
  cat <<'TEXT'
usage: infra/verify.sh [--work FOLDER] [WHAT]…

  --work FOLDER  keep what was built and bootstrapped, for the next time (default: a new one)
  WHAT           of twice, debian12, debian13, rpm, image, pythons, readme (default: all)

twice      every artefact is built two times, and has the same bytes
debian12   the .deb: install, check, run against the simulator, downgrade and upgrade with
debian13   deliveries pending, a version that does not start, rollback, remove, purge
rpm        the .rpm by rpm itself, in a root of Debian 13: the same without a service
image      the image, unpacked by umoci and run by runc
pythons    the tests of tests/{foundation,events,outbox} on each Python from 3.11 that pyenv has
readme     the first command of README, and all that it installs with pip, in a Debian 12 that
           has no compiler; needs the network
TEXT
}

work=
what=()
while [ $# -gt 0 ]; do
  case $1 in
    --work)
      [ $# -ge 2 ] || { usage >&2 && exit 2; }
      work=$2
      shift
      ;;
    twice | debian12 | debian13 | rpm | image | pythons | readme) what+=("$1") ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
[ ${#what[@]} -gt 0 ] || what=(twice debian12 debian13 rpm image pythons readme)
[ "$(id -u)" = 0 ] || { echo "verify.sh: must be run as root" >&2 && exit 1; }
tools=(sebridge debootstrap dpkg-deb rpmbuild rpm umoci skopeo runc unshare nsenter)
[ "${what[*]}" != readme ] || tools=(debootstrap unshare)
for tool in "${tools[@]}"; do
  command -v "$tool" >/dev/null || { echo "verify.sh: $tool is missing" >&2 && exit 1; }
done
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'end; rm -rf "$work"' EXIT
else
  mkdir -p "$work"
  work=$(cd "$work" && pwd)
  trap end EXIT
fi
files=$work/files
mkdir -p "$files"
started=()
machine=

# end: whatever was started here.
end() {
  local process
  for process in ${started[@]+"${started[@]}"}; do
    kill -9 "$process" 2>/dev/null || true
    wait "$process" 2>/dev/null || true
  done
  started=()
  machine=
}

step() { printf '\n== %s\n' "$*"; }

# ok TEXT COMMAND…: say that it holds, or stop.
ok() {
  local text=$1
  shift
  if "$@" >"$work/last.log" 2>&1; then
    printf '  ok   %s\n' "$text"
  else
    printf '  FAIL %s\n' "$text"
    tail -n 40 "$work/last.log"
    [ -z "$machine" ] || there journalctl --no-pager -n 10 -u sebridge || true
    exit 1
  fi
}

# no COMMAND…: it fails, as it should.
no() { ! "$@"; }

# soon COMMAND…: it holds within a minute.
soon() {
  local end=$((SECONDS + 60))
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.5
  done
}

# --- What is tried.

# variant NAME VERSION: a package of the source in $work/NAME, with the same wheels.
variant() {
  rm -rf "$work/$1/infra"
  cp -a "$here" "$work/$1/infra"
  SOURCE_DATE_EPOCH=$(git -C "$top" log -1 --format=%ct) bash "$work/$1/infra/build.sh" \
    --out "$files/$1" --only deb,rpm --version "$2" --wheels "$work/wheels" >/dev/null 2>&1
}

artefacts() {
  [ ! -f "$files/present/done" ] || return 0
  step "the artefacts"
  "$here/build.sh" --out "$files/present" 2>"$work/build.log" || { cat "$work/build.log" && exit 1; }
  rm -rf "$work/wheels" "$work/kit"
  mkdir -p "$work/wheels" "$work/kit"
  tar -xzf "$files"/present/scheduled-events-bridge-*-linux-*.tar.gz -C "$work/kit"
  cp "$work"/kit/*/wheels/*.whl "$work/wheels"
  rm "$work"/wheels/scheduled_events_bridge-*
  # The last commit before the tables of the state file changed.
  old=$(git -C "$top" log -1 --format=%H -G'(ALTER|CREATE) (TABLE|INDEX|TRIGGER)' -- \
    bridge/outbox/storage/schema.py)^
  mkdir -p "$work/older" "$work/broken"
  git -C "$top" archive "$old" | tar -x -C "$work/older"
  variant older 0.0.9
  git -C "$top" archive HEAD | tar -x -C "$work/broken"
  printf '\n\ndef forward(*_, **__):\n    raise SystemExit("broken")\n' \
    >>"$work/broken/bridge/cli/process.py"
  variant broken 0.9.9
  touch "$files/present/done"
}

root_of() {
  [ -f "$work/$1/etc/debian_version" ] && [ -f "$work/$1.done" ] && return
  step "debootstrap $1"
  rm -rf "${work:?}/$1"
  unshare -m debootstrap --variant=minbase --include=python3,systemd,ca-certificates "$1" "$work/$1" \
    ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$work/$1.log"
  touch "$work/$1.done"
}

# shellcheck source=infra/packaging/verify_debian.sh
. "$here/packaging/verify_debian.sh"

config() {
  cat <<'TOML'
[imds]
endpoint = "http://127.0.0.1:18080"
[[sinks]]
name = "inbox"
type = "webhook"
url = "http://127.0.0.1:18081/inbox"
[[sinks]]
name = "later"
type = "webhook"
url = "http://127.0.0.1:18091/later"
[sinks.retry]
max_backoff = "2s"
TOML
}

# --- The .rpm: by rpm itself, whose scripts run in the root; no service there.

in_root() {
  unshare -n chroot "$work/rpmroot" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@" </dev/null
}
rpm_there() { unshare -n rpm --root "$work/rpmroot" --nodeps "$@"; }

rpm_package() {
  artefacts
  root_of trixie
  step "the .rpm in a root of Debian 13"
  rm -rf "$work/rpmroot"
  cp -a "$work/trixie" "$work/rpmroot"
  present=$(echo "$files"/present/scheduled-events-bridge-*.rpm)
  older=$(echo "$files"/older/scheduled-events-bridge-*.rpm)
  ok "what it requires: $(rpm -qp --requires "$present" | grep -v rpmlib | tr '\n' ';')" rpm -K --nosignature "$present"
  ok "install" rpm_there -i "$present"
  ok "$(in_root /usr/bin/sebridge --version), account, unit" in_root sh -c \
    'sebridge --version && id sebridge && test -s /usr/lib/systemd/system/sebridge.service'
  config >"$work/rpmroot/etc/sebridge/bridge.toml"
  ok "check" in_root sebridge check -c /etc/sebridge/bridge.toml
  ok "downgrade" rpm_there -U --oldpackage "$older"
  ok "configuration is kept; $(in_root sebridge --version)" in_root sebridge check -c /etc/sebridge/bridge.toml
  ok "upgrade" rpm_there -U "$present"
  ok "configuration is kept" in_root sebridge check -c /etc/sebridge/bridge.toml
  ok "rpm -V: $(rpm_there -V scheduled-events-bridge | tr '\n' ';')" in_root sebridge --version
  ok "remove" rpm_there -e scheduled-events-bridge
  ok "the program is gone; the configuration is kept" in_root sh -c \
    'test ! -e /opt/sebridge && test ! -e /usr/lib/sebridge && test -s /etc/sebridge/bridge.toml.rpmsave'
  rm -rf "$work/rpmroot"
}

image() {
  local bundle=$work/bundle archive
  artefacts
  step "the image"
  archive=$(echo "$files"/present/*.oci.tar)
  rm -rf "$bundle" "$work/layout"
  mkdir -p "$work/layout"
  tar -xf "$archive" -C "$work/layout"
  tag=$(sed -n 's/.*"org.opencontainers.image.ref.name": "\([^"]*\)".*/\1/p' "$work/layout/index.json")
  ok "$(du -h "$archive" | cut -f1) packed; skopeo reads it" skopeo inspect "oci:$work/layout:$tag"
  ok "umoci unpacks it" umoci unpack --image "$work/layout:$tag" "$bundle"
  config >"$files/bridge.toml"
  ok "it is run as uid 10001, and says $(contained --version)" contained --version
  chmod 0644 "$files/bridge.toml"
  ok "it takes a configuration" contained check -c /etc/sebridge/bridge.toml
  timeout --signal=TERM 15 bash -c "$(declare -f contained); files=$files work=$work; contained run -c /etc/sebridge/bridge.toml" \
    >"$work/image.log" 2>&1 || true
  ok "its root is read-only, and the forwarder runs in it" grep -q '"message":' "$work/image.log" "$work/runc.log"
}

# contained ARGUMENT…: sebridge as the image runs it, read-only.
contained() {
  python3 - "$work/bundle/config.json" "$@" <<'PYTHON'
import json, sys
path, *arguments = sys.argv[1:]
spec = json.load(open(path))
spec["process"]["terminal"] = False
spec["process"]["args"] = ["sebridge", *arguments]
spec["root"]["readonly"] = True
spec["linux"].pop("resources", None)
spec["mounts"] = [m for m in spec["mounts"] if m["destination"] not in ("/etc/sebridge/bridge.toml", "/sys/fs/cgroup", "/etc/resolv.conf", "/var/lib/sebridge")]
spec["mounts"].append({"destination": "/var/lib/sebridge", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=700", "uid=10001", "gid=10001"]})
spec["mounts"].append({"destination": "/etc/sebridge/bridge.toml", "type": "bind", "source": sys.argv[1].rsplit("/", 2)[0] + "/files/bridge.toml", "options": ["bind", "ro"]})
json.dump(spec, open(path, "w"))
PYTHON
  runc --root "$work/runc" run --bundle "$work/bundle" "sebridge-verify-$$" </dev/null 2>"$work/runc.log"
}

twice() {
  local kind
  artefacts
  step "built twice"
  "$here/build.sh" --out "$work/again" >/dev/null 2>"$work/build.log" || { cat "$work/build.log" && exit 1; }
  while read -r kind; do
    ok "$kind" cmp "$files/present/$kind" "$work/again/$kind"
  done < <(cd "$work/again" && ls)
  rm -rf "$work/again"
}

pythons() {
  local python
  for python in "$(pyenv root)"/versions/3.1[1-9]*/bin/python; do
    step "tests on $("$python" --version)"
    [ -x "$work/env-${python//\//_}/bin/pytest" ] ||
      { "$python" -m venv "$work/env-${python//\//_}" &&
        "$work/env-${python//\//_}/bin/pip" install -q -c "$top/constraints.txt" -e "${top}[dev]" 2>/dev/null; }
    (cd "$top" && "$work/env-${python//\//_}/bin/python" -m pytest -q -p no:cacheprovider \
      tests/foundation tests/events tests/outbox 2>&1 | tail -n 5)
  done
}

# in_clone COMMAND…: in a root with this source in /clone and the network of this machine,
# and nothing else of it. pip is told here what it is told outside, but for other places of
# packages: they may have been compiled there.
in_clone() {
  local told=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive) one
  while IFS= read -r one; do told+=("$one"); done < <(env | grep -E '^(PIP_(CERT|INDEX_URL|DEFAULT_TIMEOUT)|SSL_CERT_FILE|[a-zA-Z]+_(proxy|PROXY))=')
  # shellcheck disable=SC2016 # the shell in the namespace reads it
  unshare -m bash -c 'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" &&
    exec chroot "$0" env -i -C /clone "$@"' "$work/clone" "${told[@]}" "$@" </dev/null
}

readme() {
  local command file extras
  root_of bookworm
  step "README's first command on Debian $(cat "$work/bookworm/etc/debian_version")"
  rm -rf "$work/clone"
  cp -a "$work/bookworm" "$work/clone"
  cp -L /etc/resolv.conf "$work/clone/etc/resolv.conf"
  for file in ${SSL_CERT_FILE:+"$SSL_CERT_FILE"} ${PIP_CERT:+"$PIP_CERT"}; do
    command install -D -m 0644 "$file" "$work/clone$file"
  done
  mkdir "$work/clone/clone"
  git -C "$top" archive HEAD | tar -x -C "$work/clone/clone"
  command=$(sed -n '/<!-- command: demo -->/,/^```$/p' "$top/README.md" | grep '^python3 ')
  ok "without Python's venv it says what is missing" no in_clone sh -c "$command"
  sed 's/^/       | /' "$work/last.log"
  ok "apt-get install -y python3-venv, as README says" in_clone sh -c \
    'apt-get update -q && apt-get install -q -y --no-install-recommends python3-venv'
  # shellcheck disable=SC2016 # the shell there reads it
  ok "no compiler, and no headers of Python" in_clone sh -c \
    'for one in gcc cc c89 c99 g++ clang tcc make x86_64-linux-gnu-gcc; do ! command -v $one || exit 1; done
     ! find / -xdev -name Python.h | grep .'
  ok "$command" in_clone sh -c "$command"
  sed 's/^/       | /' "$work/last.log"
  for extras in $(grep -o "'\.\[[a-z,]*\]'" "$top/README.md" | tr -d "'" | sort -u); do
    ok "pip install $extras" in_clone .venv/bin/pip install -q -c constraints.txt "$extras"
  done
  rm -rf "$work/clone"
}

for one in "${what[@]}"; do
  case $one in
    debian12) debian bookworm ;;
    debian13) debian trixie ;;
    rpm) rpm_package ;;
    *) "$one" ;;
  esac
done
step "all of it holds: ${what[*]}"
