#!/usr/bin/env bash
# Tries the templates of infra/bicep with Microsoft's Bicep compiler: nothing is deployed,
# and no account is needed. CI does not run it: the compiler is in no package index.
# shellcheck disable=SC2317 # `check` calls them
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

usage() {
  cat <<'TEXT'
usage: infra/verify-with-bicep.sh

Needs `bicep` 0.41.2 or newer on the PATH. For each template:

build      it compiles, without a warning
lint       the rules of Bicep's linter hold, each as an error
format     it is as `bicep format` writes it
snapshot   each documented deployment can be evaluated, and each wrong combination of
           parameters is refused with its message

Exit code: 0 all of it holds, 1 something does not, 2 wrong usage,
77 `bicep` is not on the PATH, and nothing was tried.
TEXT
}

case ${1:-} in
  '') ;;
  -h | --help) usage && exit 0 ;;
  *) usage >&2 && exit 2 ;;
esac

if ! command -v bicep >/dev/null; then
  echo "bicep is not on the PATH: nothing was tried (https://aka.ms/bicep-install)"
  exit 77
fi

# In a copy: the strict rules are for us, and not for who deploys the templates.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/fleet"
cp -r "$here/bicep" "$work/bicep"
cp -r "$here/fleet/policy" "$work/fleet/policy"
cd "$work/bicep"

rules=(
  adminusername-should-not-be-literal no-hardcoded-env-urls no-unnecessary-dependson
  no-unused-existing-resources no-unused-params no-unused-vars
  outputs-should-not-contain-secrets prefer-interpolation prefer-unquoted-property-names
  protect-commandtoexecute-secrets secure-parameter-default secure-params-in-nested-deploy
  secure-secrets-in-params simplify-interpolation use-parent-property
  use-resource-id-functions use-resource-symbol-reference use-safe-access
  use-stable-resource-identifiers use-stable-vm-image
)
{
  echo '{"analyzers": {"core": {"enabled": true, "rules": {'
  for rule in "${rules[@]}"; do printf '"%s": {"level": "error"},\n' "$rule"; done
  echo '"max-outputs": {"level": "error"}}}}}'
} >bicepconfig.json

failed=0

# report WHAT FILE STATUS: print whether it held, with what the compiler said.
report() {
  if [ "$3" = 0 ]; then
    echo "✓ $1 $2"
  else
    echo "✗ $1 $2"
    sed 's/^/    /' "$work/said"
    failed=1
  fi
}

# quiet COMMAND…: it succeeds, and neither warns nor reports an error.
quiet() {
  "$@" >"$work/out" 2>"$work/said" || return 1
  ! grep -Eq ' : (Warning|Error) ' "$work/said"
}

# check WHAT FILE COMMAND…
check() {
  local what=$1 file=$2 status=0
  shift 2
  "$@" || status=$?
  report "$what" "$file" "$status"
}

formatted() {
  bicep format "$1" --stdout >"$work/out" 2>"$work/said" || return 1
  diff "$1" "$work/out" >"$work/said"
}

while IFS= read -r file; do
  check build "$file" quiet bicep build "$file" --stdout
  check lint "$file" quiet bicep lint "$file"
  check format "$file" formatted "$file"
done < <(find . -name '*.bicep' | sed 's|^\./||' | sort)

# -- Deployments: a name, the template, and the parameters as lines of a .bicepparam -----

subscription=00000000-0000-0000-0000-000000000001
group="/subscriptions/$subscription/resourceGroups/sebridge"
context=(--mode overwrite --subscription-id "$subscription" --location westeurope)

# snapshot NAME TEMPLATE PARAMETERS: evaluate a deployment.
snapshot() {
  local scope=("${context[@]}")
  [ "$2" = policy.bicep ] || scope+=(--resource-group sebridge)
  printf "using './%s'\n%s\n" "$2" "$3" >"$1.bicepparam"
  bicep snapshot "$1.bicepparam" "${scope[@]}" >"$work/said" 2>&1
}

works() { check snapshot "$1" snapshot "$@"; }

# refused NAME TEMPLATE PARAMETERS WORDS: it must fail, and say these words.
refused() {
  local status=0
  if snapshot "$1" "$2" "$3"; then
    echo "it is not refused" >"$work/said"
    status=1
  else
    grep -Fq "$4" "$work/said" || status=1
  fi
  report refused "$1" "$status"
}

machine="param subnetId = '$group/providers/Microsoft.Network/virtualNetworks/v/subnets/s'
param sshPublicKey = 'ssh-ed25519 AAAA'
param sourceUri = 'https://example.com/sebridge.tar.gz'
param sourceSha256 = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'"
hub="param withHub = true
param hubImage = 'contoso.azurecr.io/sebridge-hub:1.2.3'
param hubEnvironmentId = '$group/providers/Microsoft.App/managedEnvironments/e'
param hubDatabaseSubnetId = '$group/providers/Microsoft.Network/virtualNetworks/v/subnets/d'
param hubDatabaseZoneId = '$group/providers/Microsoft.Network/privateDnsZones/z'
param hubClientId = '00001111-aaaa-2222-bbbb-3333cccc4444'
param hubConfig = 'x'"
registry="param hubRegistry = 'contoso.azurecr.io'
param hubRegistryIdentityId = '$group/providers/Microsoft.ManagedIdentity/userAssignedIdentities/i'"
slack="param slackSigningSecretUri = 'https://v.vault.azure.net/secrets/a'
param buttonSecretUri = 'https://v.vault.azure.net/secrets/b'"
policy="param applicationId = '$group/providers/Microsoft.Compute/galleries/g/applications/a'
param identityId = '$group/providers/Microsoft.ManagedIdentity/userAssignedIdentities/i'"

works bus main.bicep ''
works mail main.bicep "param alertEmail = 'ops@contoso.com'"
works vm main.bicep "param install = 'vm'
$machine"
works scale-set main.bicep "param install = 'scaleSet'
$machine"
works approver main.bicep "param withApprover = true
$slack"
works teams main.bicep "param withApprover = true
param teamsConversation = '19:x@thread.tacv2'"
works hub main.bicep "$hub"
works hub-of-a-group main.bicep "$hub
$registry
param hubDatabaseAdminId = '00001111-aaaa-2222-bbbb-3333cccc5555'
param hubDatabaseAdminName = 'dba'"
works application application.bicep "param packageUri = 'https://example.com/a?sig=x'"
works audit policy.bicep "$policy"
works deploy policy.bicep "$policy
param effect = 'DeployIfNotExists'
param remediate = true"

refused closed-standard main.bicep "param publicNetworkAccess = 'Disabled'" sku=Premium
refused no-subnet main.bicep "param install = 'vm'" 'install needs subnetId'
refused no-key main.bicep "param install = 'vm'" 'install needs sshPublicKey'
refused no-source main.bicep "param install = 'vm'" 'install needs sourceUri'
refused bare-hub main.bicep 'param withHub = true' 'withHub needs'
refused half-registry main.bicep "param hubRegistry = 'x'" 'hubRegistry and'
refused half-admin main.bicep "param hubDatabaseAdminId = 'x'" 'hubDatabaseAdminId and'
refused no-owners main.bicep "param voteRule = 'resources'" 'voteRule=resources needs'
refused teams-alone main.bicep "param teamsConversation = 'x'" 'teamsConversation needs'
refused half-slack main.bicep "param buttonSecretUri = 'x'" 'Slack needs'
refused no-package application.bicep '' 'packageUri is missing'
refused no-application policy.bicep '' 'applicationId is missing'

[ "$failed" = 0 ] && echo "all of it holds, with $(bicep --version)"
exit "$failed"
