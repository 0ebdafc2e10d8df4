#!/usr/bin/env bash
# Writes the lock files anew, with the hashes of every file of each release: requirements.txt
# and pip.txt are what the packages hold; requirements-EXTRA.txt is that and one extra more. To be run after a change of pyproject.toml or constraints.txt, in an
# environment that has uv.
set -euo pipefail
cd "$(dirname "$0")/../.."
lock() {
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
    --no-annotate --constraints constraints.txt "$@"
}
lock --extra slack --extra template pyproject.toml --output-file infra/packaging/requirements.txt
for extra in email hub simulator windows; do
  lock --extra slack --extra template --extra "$extra" pyproject.toml \
    --output-file "infra/packaging/requirements-$extra.txt"
done
echo 'pip==26.3' | lock - --output-file infra/packaging/pip.txt
