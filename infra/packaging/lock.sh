#!/usr/bin/env bash
# Writes the lock files anew, with the hashes of every file of each release: requirements.txt
# and pip.txt are what the packages hold, requirements-hub.txt what that of the hub holds;
# requirements-EXTRA.txt is requirements.txt and one extra more. To be run after a change of
# pyproject.toml or constraints.txt, in an environment that has uv.
set -euo pipefail
cd "$(dirname "$0")/../.."
vm=(--extra email --extra slack --extra template)
lock() {
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
    --no-annotate --constraints constraints.txt "$@"
}
lock "${vm[@]}" pyproject.toml --output-file infra/packaging/requirements.txt
for extra in hub simulator windows; do
  lock "${vm[@]}" --extra "$extra" pyproject.toml \
    --output-file "infra/packaging/requirements-$extra.txt"
done
echo 'pip==26.3' | lock - --output-file infra/packaging/pip.txt
