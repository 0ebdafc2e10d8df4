#!/usr/bin/env bash
# Builds what is installed elsewhere. All times are those of the commit, so that the same
# commit gives the same bytes.
set -euo pipefail
umask 022
here=$(cd "$(dirname "$0")" && pwd)
top=$(dirname "$here")
export LC_ALL=C TZ=UTC PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

usage() {
  cat <<'TEXT'
usage: infra/build.sh [--out FOLDER] [--only KIND[,KIND]…] [--arch MACHINE]
       [--wheels FOLDER] [--version VERSION] [--python FILE]

  --out FOLDER      where the artefacts go (default: dist)
  --only KINDS      of wheel, sdist, kit, windows, deb, rpm, image, sbom (default: all);
                    deb, rpm and sbom are of the forwarder's package and of sebridge-hub
  --arch MACHINE    x86_64 or aarch64 (default: this machine's; an image of another
                    machine than this cannot be built)
  --wheels FOLDER   take the wheels of this folder, and fetch none
  --version VERSION of the packages (default: that of the program)
  --python FILE     put this installer of python.org (python-3.…-amd64.exe) into the .zip
                    for Windows (default: none; then each VM must have it)

Needs Python 3.11+ and git; for the .deb dpkg-deb, for the .rpm rpmbuild, for the image
root and debootstrap. SHA256SUMS lists what was built. SOURCE_DATE_EPOCH may be set; else
it is the time of the commit.
TEXT
}

fail() {
  printf 'build.sh: %s\n' "$1" >&2
  exit "${2:-1}"
}
step() { printf '== %s\n' "$*"; }

out=$top/dist
only=wheel,sdist,kit,windows,deb,rpm,image,sbom
arch=$(uname -m)
wheels=
version=
setup=
while [ $# -gt 0 ]; do
  case $1 in
    --out | --only | --arch | --wheels | --version)
      [ $# -ge 2 ] || fail "$1 wants a value" 2
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --python)
      [[ $# -ge 2 && -f $2 && ${2##*/} == python-3.*-amd64.exe ]] ||
        fail "--python wants a file python-3.…-amd64.exe" 2
      setup=$2
      shift
      ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && fail "unknown argument: $1" 2 ;;
  esac
  shift
done
case $arch in
  x86_64) deb_arch=amd64 ;;
  aarch64) deb_arch=arm64 ;;
  *) fail "--arch is x86_64 or aarch64, not $arch" 2 ;;
esac
for kind in ${only//,/ }; do
  case $kind in
    wheel | sdist | kit | windows | deb | rpm | image | sbom) ;;
    *) fail "--only knows no $kind" 2 ;;
  esac
done
wants() { [[ ,$only, == *,$1,* ]]; }
need() { command -v "$1" >/dev/null || fail "$1 is missing: $2 (or leave it out by --only)"; }
! wants deb || need dpkg-deb "Debian's package dpkg"
! wants rpm || need rpmbuild "Debian's package rpm, RHEL's rpm-build"
if wants image; then
  need debootstrap "Debian's package debootstrap"
  [ "$(id -u)" = 0 ] || fail "the image is built as root"
  [ "$arch" = "$(uname -m)" ] || fail "the image is of this machine's kind, not $arch"
fi
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
  SOURCE_DATE_EPOCH=$(git -C "$top" log -1 --format=%ct) || fail "set SOURCE_DATE_EPOCH"
fi
export SOURCE_DATE_EPOCH
own_version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$top/bridge/__init__.py")
version=${version:-$own_version}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# same_times FOLDER: give every file the time of the commit.
same_times() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }

python=python3
if ! "$python" -c 'import build, hatchling, packaging' 2>/dev/null; then
  step "tools"
  python3 -m venv "$work/tools"
  python=$work/tools/bin/python
  "$python" -m pip install -q -c "$top/constraints.txt" build hatchling packaging
fi

step "wheel and sdist"
# What git knows, so that nothing that lies about gets in.
mkdir "$work/source"
if git -C "$top" rev-parse --git-dir >/dev/null 2>&1; then
  git -C "$top" ls-files -z --cached --others --exclude-standard |
    (cd "$top" && xargs -0 ls -d 2>/dev/null | tar -c --files-from=-) | tar -x -C "$work/source"
else
  cp -a "$top/." "$work/source"
fi
same_times "$work/source"
"$python" -m build --no-isolation --outdir "$work/built" "$work/source" >"$work/build.log" 2>&1 ||
  { cat "$work/build.log" >&2 && fail "the wheel could not be built"; }
# Machines get it without the local Azure and the demo.
mkdir "$work/vm"
"$python" "$here/packaging/vm_wheel.py" "$work"/built/*.whl "$work/vm"
! wants wheel || cp "$work"/built/*.whl "$out"
! wants sdist || cp "$work"/built/*.tar.gz "$out"

# sums FOLDER: write the SHA256SUMS of all that is in it.
sums() {
  (cd "$1" && find . -type f ! -name SHA256SUMS -print0 | sort -z |
    xargs -0 sha256sum >"$work/sums" && mv "$work/sums" SHA256SUMS)
}

# get_wheels FOLDER MACHINE LOCK: all of a lock file, and the program.
get_wheels() {
  mkdir -p "$1"
  if [ -n "$wheels" ]; then
    cp "$wheels"/*.whl "$1"
  else
    "$python" "$here/packaging/wheelhouse.py" "$@"
  fi
  cp "$work"/vm/*.whl "$1"
}

# kit FOLDER LOCK: what is /usr/lib/sebridge or /usr/lib/sebridge-hub in a package; the
# forwarder's is the archive for offline use, too.
kit() {
  local kit=$1
  step "wheels for $arch: $2"
  get_wheels "$kit/wheels" "$arch" "$2"
  mkdir -p "$kit/hooks"
  cp "$here"/{install.sh,uninstall.sh,lib.sh,program.sh} "$kit"
  cp "$here/packaging/$2" "$kit/requirements.txt"
  cp -r "$here/systemd" "$kit/systemd"
  cp "$here"/hooks/hook.sh "$kit/hooks"
  rm -rf "$kit/systemd/README.md" "$kit/systemd/__pycache__"
  sums "$kit"
  chmod -R u=rwX,go=rX "$kit"
  same_times "$kit"
}

# archive: everything for a machine without the Internet, as a tar.gz.
archive() {
  local name=scheduled-events-bridge-$version-linux-$arch
  step "$name.tar.gz"
  mkdir -p "$work/archive"
  cp -a "$work/kit" "$work/archive/$name"
  cp "$here/packaging/kit-readme.md" "$work/archive/$name/README.md"
  cp "$top/LICENSE" "$top/CHANGELOG.md" "$top/config/bridge.example.toml" "$work/archive/$name"
  cp "$here"/hooks/* "$work/archive/$name/hooks"
  cp "$here/fleet/vm-application.sh" "$work/archive/$name"
  same_times "$work/archive"
  tar -C "$work/archive" --sort=name --owner=0 --group=0 --numeric-owner --format=gnu \
    -c "$name" | gzip -n -6 >"$out/$name.tar.gz"
}

# windows: everything for Windows on x86-64 without the Internet, as a .zip.
windows() {
  local name=scheduled-events-bridge-$version-windows-amd64 folder=$work/windows
  step "$name.zip"
  get_wheels "$folder/wheels" win_amd64 requirements-windows.txt
  cp "$here"/windows/{lib,install,upgrade,uninstall,vm-application}.ps1 "$here/windows/bridge.toml" "$folder"
  cp "$here/windows/kit-readme.md" "$folder/README.md"
  cp "$here/packaging/requirements-windows.txt" "$folder/requirements.txt"
  cp "$here/hooks/sqlserver-failover.ps1" "$top/config/bridge.example.toml" "$folder"
  cp "$top/LICENSE" "$folder/LICENSE.txt"
  cp "$top/CHANGELOG.md" "$folder"
  [ -z "$setup" ] || cp "$setup" "$folder"
  sums "$folder"
  "$python" "$here/packaging/zip_folder.py" "$folder" "$out/$name.zip"
}

# program KIT: an environment with all that a machine gets by a kit, to be looked at.
program() {
  local pip made=$1-program
  pip=$(echo "$1"/wheels/pip-*.whl)
  [ ! -d "$made" ] || return 0
  python3 -m venv --without-pip "$made"
  "$made/bin/python" -I "$pip/pip" --isolated install -q --no-index --no-deps \
    --find-links "$1/wheels" --require-hashes -r "$1/requirements.txt"
  "$made/bin/python" -I "$pip/pip" --isolated install -q --no-index --no-deps "$work"/vm/*.whl
}

# tree: the files of a package, as they are installed.
tree() {
  local tree=$work/tree docs=usr/share/doc/scheduled-events-bridge
  [ ! -d "$tree" ] || return 0
  step "files of the packages"
  mkdir -p "$tree"/{etc/sebridge,usr/{bin,sbin,lib/{systemd/system,sysusers.d}}}
  mkdir -p "$tree"/usr/share/{bash-completion/completions,man/man{1,8},sebridge/hooks} "$tree/$docs"
  cp -a "$work/kit" "$tree/usr/lib/sebridge"
  ln -s /opt/sebridge/bin/sebridge "$tree/usr/bin/sebridge"
  cp "$here/packaging/sebridge-setup" "$tree/usr/sbin"
  cp "$here/systemd/sebridge.service" "$tree/usr/lib/systemd/system"
  cp "$here/systemd/sysusers.conf" "$tree/usr/lib/sysusers.d/sebridge.conf"
  cp "$here/systemd/completion.bash" "$tree/usr/share/bash-completion/completions/sebridge"
  cp "$here"/hooks/* "$tree/usr/share/sebridge/hooks"
  cp "$here/systemd/bridge.toml" "$tree/etc/sebridge"
  cp "$top/LICENSE" "$tree/$docs/copyright"
  cp "$top/config/bridge.example.toml" "$tree/$docs"
  gzip -n -9 <"$top/CHANGELOG.md" >"$tree/$docs/CHANGELOG.md.gz"
  manual | gzip -n -9 >"$tree/usr/share/man/man1/sebridge.1.gz"
  sed "s/@VERSION@/$version/; s/@DATE@/$(day +%F)/" "$here/packaging/sebridge-setup.8" |
    gzip -n -9 >"$tree/usr/share/man/man8/sebridge-setup.8.gz"
  chmod -R u=rwX,go=rX "$tree"
  chmod 0750 "$tree/etc/sebridge"
  chmod 0640 "$tree/etc/sebridge/bridge.toml"
  same_times "$tree"
}

# hub_tree: the files of the package sebridge-hub.
hub_tree() {
  local tree=$work/hub-tree docs=usr/share/doc/sebridge-hub
  [ ! -d "$tree" ] || return 0
  step "files of sebridge-hub"
  mkdir -p "$tree"/{etc/sebridge-hub,usr/{bin,sbin,lib/{systemd/system,sysusers.d}}} "$tree/$docs"
  cp -a "$work/hub-kit" "$tree/usr/lib/sebridge-hub"
  ln -s /opt/sebridge-hub/bin/sebridge "$tree/usr/bin/sebridge-hub"
  cp "$here/packaging/sebridge-hub-setup" "$tree/usr/sbin"
  cp "$here/systemd/sebridge-hub.service" "$tree/usr/lib/systemd/system"
  cp "$here/systemd/sysusers-hub.conf" "$tree/usr/lib/sysusers.d/sebridge-hub.conf"
  cp "$here/systemd/hub.toml" "$tree/etc/sebridge-hub"
  cp "$top/LICENSE" "$tree/$docs/copyright"
  cp "$top/config/hub.md" "$tree/$docs"
  chmod -R u=rwX,go=rX "$tree"
  chmod 0750 "$tree/etc/sebridge-hub"
  chmod 0640 "$tree/etc/sebridge-hub/hub.toml"
  same_times "$tree"
}

# manual: the manual page; by what runs this where it can import the program.
manual() {
  if "$python" -c 'import aiohttp, click, msgspec, orjson' 2>/dev/null; then
    PYTHONPATH=$work/source "$python" "$here/packaging/manpage.py"
  else
    program "$work/kit"
    "$work/kit-program/bin/python" "$here/packaging/manpage.py"
  fi
}

# day FORMAT: the date of the build.
day() { LC_ALL=C date --utc --date "@$SOURCE_DATE_EPOCH" "$@"; }

# debian_changelog PACKAGE: in the form that Debian's programs read.
debian_changelog() {
  cat <<TEXT
$1 ($version) unstable; urgency=medium

  * Version $version: see CHANGELOG.md of the program.

 -- $(sed -n 's/^Maintainer: //p' "$here/packaging/deb/control")  $(day -R)
TEXT
}

# deb PACKAGE TREE SCRIPTS CONFIGURATION
deb() {
  local name=$1_${version}_$deb_arch.deb build=$2.deb docs=usr/share/doc/$1
  step "$name"
  cp -a "$2" "$build"
  debian_changelog "$1" | gzip -n -9 >"$build/$docs/changelog.gz"
  chmod 0644 "$build/$docs/changelog.gz"
  install -d -m 0755 "$build/DEBIAN"
  install -m 0755 "$3"/{postinst,prerm,postrm} "$build/DEBIAN"
  sed "s/@VERSION@/$version/; s/@ARCH@/$deb_arch/; s/@SIZE@/$(size "$2")/" \
    "$3/control" >"$build/DEBIAN/control"
  echo "$4" >"$build/DEBIAN/conffiles"
  (cd "$build" && find usr etc -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
  same_times "$build"
  dpkg-deb --root-owner-group -Zgzip -z6 --build "$build" "$out/$name" >/dev/null
}

# size TREE: of what is installed, in KiB; of the files, as folders differ by file system.
size() { find "$1" -type f -printf '%s\n' | awk '{ n += int(($1 + 1023) / 1024) } END { print n }'; }

# rpm PACKAGE TREE SPEC
rpm() {
  local name=$1-$version-1.$arch.rpm spec=$work/$1.spec
  step "$name"
  sed "s|@VERSION@|$version|; s|@TREE@|$2|" "$here/packaging/rpm/$3" >"$spec"
  rpmbuild -bb --quiet --target "$arch-linux" --define "_topdir $work/rpm" \
    --define "_buildhost localhost" --define "use_source_date_epoch_as_buildtime Y" \
    --define "clamp_mtime_to_source_date_epoch Y" --define "_dbpath $work/rpmdb" \
    "$spec" >"$work/rpm.log" 2>&1 ||
    { cat "$work/rpm.log" >&2 && fail "the .rpm could not be built"; }
  cp "$work/rpm/RPMS/$arch/$name" "$out"
}

image() {
  local name=scheduled-events-bridge-$version-$arch.oci.tar root=$work/root
  step "$name"
  # In mounts of its own: what it mounts below the root is gone with it.
  unshare -m debootstrap --variant=minbase --include=python3,ca-certificates trixie "$root" \
    ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$work/debootstrap.log" 2>&1 ||
    { tail -n 20 "$work/debootstrap.log" >&2 && fail "debootstrap failed"; }
  cp -a "$work/kit" "$root/kit"
  # A tree and no machine: no account is made and nothing started.
  chroot "$root" env -i PATH=/usr/bin:/bin DESTDIR=/. /kit/install.sh --no-start >"$work/image.log" 2>&1 ||
    { cat "$work/image.log" >&2 && fail "the image could not be built"; }
  lean "$root"
  echo image | tee "$root"/opt/sebridge-versions/*/installed >/dev/null
  install -d -m 0700 "$root/var/lib/sebridge"
  "$python" "$here/packaging/oci_image.py" "$root" "$out/$name" "$arch" "$version"
}

# lean ROOT: without what a container does not need, and what differs between two builds.
lean() {
  local root=$1
  # A folder of the kernel's here would be that of this machine.
  ! grep -q " $root/" /proc/mounts || fail "something is mounted below $root"
  rm -rf --one-file-system "$root/kit" "$root"/var/{cache,log,lib/apt/lists}/* "$root"/var/lib/dpkg/*-old \
    "$root"/usr/share/{doc,man,info,locale}/* "$root"/etc/{machine-id,hostname,resolv.conf} \
    "$root"/etc/*- "${root:?}"/{tmp,dev,proc,sys,run}/*
  rm -rf "$root/etc/systemd" "$root/etc/sysusers.d" "$root/etc/sebridge"
  find "$root" -name __pycache__ -prune -exec rm -rf {} +
  chroot "$root" env PYTHONHASHSEED=0 python3 -m compileall -q \
    --invalidation-mode unchecked-hash /opt/sebridge-versions /usr/lib/python3.13 || true
  printf 'sebridge:x:10001:\n' >>"$root/etc/group"
  printf 'sebridge:x:10001:10001::/var/lib/sebridge:/usr/sbin/nologin\n' >>"$root/etc/passwd"
}

# sbom KIT FILE
sbom() {
  step "$2"
  program "$1"
  if [ ! -x "$work/sbom/bin/cyclonedx-py" ]; then
    python3 -m venv "$work/sbom"
    "$work/sbom/bin/pip" install -q 'cyclonedx-bom==7.5.0'
  fi
  "$work/sbom/bin/cyclonedx-py" environment --pyproject "$top/pyproject.toml" --sv 1.6 \
    --validate --output-reproducible -o "$out/$2" "$1-program/bin/python" \
    2>"$work/sbom.log" || { cat "$work/sbom.log" >&2 && fail "no SBOM could be made"; }
}

if wants kit || wants deb || wants rpm || wants image || wants sbom; then
  kit "$work/kit" requirements.txt
fi
! wants kit || archive
! wants windows || windows
if wants deb || wants rpm || wants sbom; then
  kit "$work/hub-kit" requirements-hub.txt
fi
if wants deb || wants rpm; then
  tree
  hub_tree
fi
if wants deb; then
  deb scheduled-events-bridge "$work/tree" "$here/packaging/deb" /etc/sebridge/bridge.toml
  deb sebridge-hub "$work/hub-tree" "$here/packaging/hub" /etc/sebridge-hub/hub.toml
fi
if wants rpm; then
  rpm scheduled-events-bridge "$work/tree" sebridge.spec
  rpm sebridge-hub "$work/hub-tree" sebridge-hub.spec
fi
! wants image || image
if wants sbom; then
  sbom "$work/kit" sbom.cdx.json
  sbom "$work/hub-kit" sbom-hub.cdx.json
fi
(cd "$out" && rm -f SHA256SUMS && find . -maxdepth 1 -type f -printf '%f\n' | sort |
  xargs sha256sum >"$work/sums" && mv "$work/sums" SHA256SUMS && cat SHA256SUMS)
