#!/usr/bin/env bash
# Writes requirements.txt and pip.txt anew: what the packages hold, with the hashes of every
# file of each release. To be run after a change of pyproject.toml or constraints.txt, in an
# environment that has uv.
set -euo pipefail
cd "$(dirname "$0")/../.."
lock() {
  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
    --no-annotate --constraints constraints.txt "$@"
}
lock --extra slack --extra template pyproject.toml --output-file infra/packaging/requirements.txt
echo 'pip==26.3' | lock - --output-file infra/packaging/pip.txt
