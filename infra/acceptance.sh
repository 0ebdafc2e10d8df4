#!/usr/bin/env bash
# Compares Azure with the simulator: deploys the bridge as infra/afternoon.md says, lets two
# User reboots happen, approves them, and prints what was not as in the simulator.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(dirname "$here")

usage() {
  cat <<'TEXT'
usage: infra/acceptance.sh -g GROUP [-l LOCATION] [OPTION]…

  -g GROUP             resource group: made and deleted again; or one that is there, empty
  -l LOCATION          region of a group that is made (default: westeurope)
  --dry-run            print each command, and do nothing
  --keep               remove nothing; print how to remove it
  --work FOLDER        where the records go; with --keep, continue there (default: a new one)
  --python PYTHON      with the extra [simulator] (default: .venv/bin/python, or python3)
  --started SECONDS    how long a reboot stays Started in the simulator (default: 600)
  --pause SECONDS      until the first reboot: Azure needs five minutes (default: 300)

Needs `az login` (Owner, or Contributor with Role Based Access Control Administrator, on the
group), git, ssh-keygen. Exit codes: 0 nothing differs; 3 something does, see the table;
1 a step failed; 2 wrong usage.
TEXT
}

stop() {
  printf 'acceptance.sh: %s\n' "$1" >&2
  exit "${2:-1}"
}

group='' location=westeurope dry=no keep=no work='' python='' started='' pause=300
# What Azure answers; ask fills them in.
subscription='' kind='' who='' encryption='' me='' exists='' tag='' others='' subnet=''
source_uri='' namespace='' app='' bus='' key='' target=''
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry=yes ;;
    --keep) keep=yes ;;
    -h | --help) usage && exit 0 ;;
    -g | -l | --work | --python | --started | --pause)
      [ $# -ge 2 ] || stop "$1 needs a value" 2
      case $1 in
        -g) group=$2 ;;
        -l) location=$2 ;;
        --work) work=$2 ;;
        --python) python=$2 ;;
        --started) started=$2 ;;
        --pause) pause=$2 ;;
      esac
      shift
      ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
[ -n "$group" ] || { usage >&2 && exit 2; }

# --- How commands are run

# masked TEXT…: the words of a command, without signatures.
masked() { printf '%q ' "$@" | sed -E 's/(sig(\\?=|%3D))[A-Za-z0-9%+\/]+/\1***/g'; }
show() { printf '+ %s\n' "$(masked "$@")"; }

# run COMMAND…: print it, then do it.
run() {
  show "$@"
  [ "$dry" = yes ] || "$@"
}
cloud() { run az "$@" --only-show-errors -o none; }

# ask NAME ARGUMENT…: have az answer, and keep the answer in the variable NAME.
ask() {
  local name=$1 answer
  shift
  show az "$@" -o tsv
  if [ "$dry" = yes ]; then answer="<$name>"; else answer=$(az "$@" --only-show-errors -o tsv); fi
  printf -v "$name" '%s' "$answer"
}

step() { printf '\n== %s (minute %d)\n' "$1" $((SECONDS / 60)); }

# again SECONDS COMMAND…: until it succeeds; what it says is shown if it never does.
again() {
  local until=$((SECONDS + $1))
  shift
  until "$@" >"$work/last.log" 2>&1; do
    if [ "$SECONDS" -ge "$until" ]; then
      cat "$work/last.log" >&2
      return 1
    fi
    sleep 15
  done
}

# on_vm WHAT [ARGUMENT]: have the VM do it, by infra/acceptance/vm.sh.
on_vm() {
  local file=$work/vm-$1.sh
  show az vm run-command invoke -g "$group" -n sebridge-vm --command-id RunShellScript --scripts "@vm-$1.sh"
  if [ "$dry" = yes ]; then return; fi
  (umask 077 && { cat "$here/acceptance/vm.sh" && printf '%q ' "$@" && echo && echo 'echo acceptance: done'; } >"$file")
  az vm run-command invoke -g "$group" -n sebridge-vm --command-id RunShellScript \
    --scripts "@$file" --query 'value[0].message' -o tsv --only-show-errors >"$file.log"
  grep -q '^acceptance: done' "$file.log" || { cat "$file.log" && return 1; }
}

program() { PYTHONPATH="$top:$here:$here/functions" exec "$python" -m "acceptance.$1" "${@:2}"; }

# --- Removal, whatever happens

owned=no simulating='' playing=''
finish() {
  local code=$? process
  trap - EXIT
  trap '' INT TERM
  for process in $simulating $playing; do end "$process"; done
  if [ "$owned" != no ]; then
    if [ "$keep" = yes ]; then
      echo "Kept, at about 3 USD a day: to remove it, run infra/acceptance.sh's last step:"
      remove echo
    else
      step "remove everything"
      remove run || { [ $code -ne 0 ] || code=1; echo "! NOT removed: see what is left in the group $group" >&2; }
    fi
  fi
  if [ "$dry" = no ]; then echo "Records: $work"; fi
  exit $code
}
# end PROCESS: ask it to stop; after half a minute, kill it.
end() {
  local _
  kill "$1" 2>/dev/null || return 0
  for _ in {1..300}; do
    kill -0 "$1" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}
remove() {
  if [ "$owned" = made ]; then
    "$1" az group delete -n "$group" --yes
  else
    "$1" az deployment group create -g "$group" -n acceptance-remove --mode Complete \
      -f "$here/acceptance/empty.json" -o none &&
      "$1" az tag update --resource-id "/subscriptions/$subscription/resourceGroups/$group" \
        --operation Delete --tags sebridgeAcceptance=found -o none
  fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- Before

cat <<TEXT
This deploys a VM, a NAT gateway, a Service Bus namespace (Standard), a storage account
and a Functions app into the group $group, restarts the VM twice, and removes everything.
It takes 40 to 80 minutes, most of it waiting, and costs under 1 USD (prices of 2025).
TEXT
for tool in az git ssh-keygen; do
  [ "$dry" = yes ] || command -v "$tool" >/dev/null || stop "$tool is missing" 2
done
if [ -z "$python" ]; then
  python=python3
  if [ -x "$top/.venv/bin/python" ]; then python=$top/.venv/bin/python; fi
fi
if [ "$dry" = no ]; then
  PYTHONPATH=$top "$python" -c 'import bridge.simulator.serve, slack_sdk' 2>/dev/null ||
    stop "$python lacks the simulator: .venv/bin/pip install -c constraints.txt '.[simulator]'" 2
  if [ -n "$(git -C "$top" status --porcelain)" ]; then
    echo "! There are changes without a commit: the VM gets the last commit."
  fi
  if [ -z "$work" ]; then work=$(mktemp -d -t sebridge-acceptance-XXXXXX); fi
  mkdir -p "$work"
  work=$(cd "$work" && pwd)
else
  work='<work>'
fi

step "look at the subscription and the group"
ask subscription account show --query id
ask kind account show --query user.type
ask who account show --query user.name
ask encryption feature show --namespace Microsoft.Compute --name EncryptionAtHost --query properties.state
if [ "$dry" = no ] && [ "$encryption" != Registered ]; then
  stop "the subscription lacks EncryptionAtHost: see section 1 of infra/afternoon.md" 2
fi
if [ "$kind" = servicePrincipal ]; then
  principal=ServicePrincipal
  ask me ad sp show --id "$who" --query id
else
  principal=User
  ask me ad signed-in-user show --query id
fi
ask exists group exists -n "$group"
if [ "$exists" = true ]; then
  ask tag group show -n "$group" --query tags.sebridgeAcceptance
  if [ -z "$tag" ] || [ "$tag" = None ]; then
    ask others resource list -g "$group" --query 'length(@)'
    [ "$others" = 0 ] || stop "the group $group has $others resources that are not of this script: name an empty or a new one" 2
    tag=found
    owned=found
    cloud tag update --resource-id "/subscriptions/$subscription/resourceGroups/$group" --operation Merge --tags sebridgeAcceptance=found
  fi
  owned=$tag
  ask location group show -n "$group" --query location
else
  owned=made
  cloud group create -n "$group" -l "$location" --tags sebridgeAcceptance=made
fi

step "the same two reboots in the simulator, meanwhile"
simulated=("$python" -m acceptance.simulated --out "$work/simulator" ${started:+--started "$started"})
show "${simulated[@]}"
if [ "$dry" = no ] && [ ! -s "$work/simulator/witness.jsonl" ]; then
  rm -rf "$work/simulator"
  program simulated "${simulated[@]:3}" >"$work/simulator.log" 2>&1 &
  simulating=$!
fi

step "a network that reaches the Internet, and the archive of this commit"
name=sebridge-acceptance
cloud network public-ip create -g "$group" -l "$location" -n $name --sku Standard --allocation-method Static
cloud network nat gateway create -g "$group" -l "$location" -n $name --public-ip-addresses $name
if [ "$dry" = yes ] || ! az network vnet show -g "$group" -n $name -o none 2>/dev/null; then
  cloud network vnet create -g "$group" -l "$location" -n $name --address-prefixes 10.9.0.0/24
fi
cloud network vnet subnet create -g "$group" --vnet-name $name -n vms --address-prefixes 10.9.0.0/24 --nat-gateway $name
ask subnet network vnet subnet show -g "$group" --vnet-name $name -n vms --query id
AZURE_STORAGE_ACCOUNT=accept$(printf %s "$subscription/$group" | sha256sum | cut -c 1-16)
export AZURE_STORAGE_ACCOUNT AZURE_STORAGE_KEY=
cloud storage account create -g "$group" -l "$location" -n "$AZURE_STORAGE_ACCOUNT" --sku Standard_LRS --allow-blob-public-access false --min-tls-version TLS1_2
ask AZURE_STORAGE_KEY storage account keys list -g "$group" -n "$AZURE_STORAGE_ACCOUNT" --query '[0].value'
cloud storage container create -n acceptance
archive=$work/sebridge.tar.gz
run git -C "$top" archive --format=tar.gz --prefix=sebridge/ -o "$archive" HEAD
cloud storage blob upload -c acceptance -n sebridge.tar.gz -f "$archive" --overwrite
expiry=$(date -u -d '+6 hours' +%Y-%m-%dT%H:%MZ 2>/dev/null || date -u -v+6H +%Y-%m-%dT%H:%MZ)
if [ "$dry" = no ] && [ -s "$work/source" ]; then
  source_uri=$(cat "$work/source") # custom data of a VM cannot be changed
else
  ask source_uri storage blob generate-sas -c acceptance -n sebridge.tar.gz --permissions r --expiry "$expiry" --https-only --full-uri
  if [ "$dry" = no ]; then (umask 077 && printf %s "$source_uri" >"$work/source"); fi
fi

step "deploy infra/bicep: the bus, a VM with the bridge, the Functions app"
sum='<sum>' ssh_key='<ssh_key>'
if [ "$dry" = no ]; then
  [ -f "$work/key" ] || ssh-keygen -q -t ed25519 -N '' -f "$work/key"
  ssh_key=$(cat "$work/key.pub")
  [ -s "$work/sum" ] || sha256sum "$archive" | cut -d ' ' -f 1 >"$work/sum"
  sum=$(cat "$work/sum")
fi
cloud deployment group create -g "$group" -n main -f "$here/bicep/main.bicep" -p install=vm "subnetId=$subnet" "sshPublicKey=$ssh_key" "sourceUri=$source_uri" "sourceSha256=$sum" withApprover=true approverAlwaysReady=0
ask namespace deployment group show -g "$group" -n main --query properties.outputs.namespace.value
ask app deployment group show -g "$group" -n main --query properties.outputs.approverHostName.value
run git -C "$top" archive --format=zip -o "$work/app.zip" HEAD:infra/functions
cloud functionapp deployment source config-zip -g "$group" -n "${app%%.*}" --src "$work/app.zip" --build-remote true

step "a subscription of our own, and the right to read it and to approve"
ask bus servicebus namespace list -g "$group" --query '[0].id'
cloud servicebus topic subscription create -g "$group" --namespace-name "${bus##*/}" --topic-name scheduled-events -n acceptance
grant() { cloud role assignment create --assignee-object-id "$me" --assignee-principal-type $principal --role "Azure Service Bus Data $1" --scope "$bus/$2"; }
grant Receiver topics/scheduled-events/subscriptions/acceptance
grant Receiver queues/replies
grant Sender queues/vm-approvals-sessions

step "the VM: cloud-init, the doctor, and the witness"
on_vm ready
if [ "$dry" = yes ]; then on_vm doctor; else again 1200 on_vm doctor || stop "the doctor finds faults"; fi
if [ "$dry" = no ]; then cat "$work/vm-doctor.sh.log"; fi
on_vm witness

step "two reboots, approved through the queue and through the app"
echo "+ sleep $pause   # Azure begins to announce five minutes after the first request"
[ "$dry" = yes ] || sleep "$pause"
ask key functionapp keys list -g "$group" -n "${app%%.*}" --query functionKeys.default
case $app in http*) ;; *) app=https://$app ;; esac
restart=(az vm restart -g "$group" -n sebridge-vm --no-wait --only-show-errors -o none)
show "$python" -m acceptance.story --out "$work/azure" --function "$app" -- "${restart[@]}"
if [ "$dry" = no ]; then
  rm -rf "$work/azure"
  BUS=$namespace FUNCTION_KEY=$key program story --out "$work/azure" --function "$app" -- "${restart[@]}" &
  playing=$! # in the background: so a signal is obeyed at once
  wait "$playing"
  playing=
fi

step "what the VM has recorded"
ask target storage blob generate-sas -c acceptance -n witness.jsonl --permissions cw --expiry "$expiry" --https-only --full-uri
on_vm send "$target"
cloud storage blob download -c acceptance -n witness.jsonl -f "$work/azure/witness.jsonl"

step "compare"
show "$python" -m acceptance.compare "$work/azure" "$work/simulator"
if [ "$dry" = no ]; then
  if [ -n "$simulating" ]; then
    wait "$simulating" || { cat "$work/simulator.log" >&2 && stop "the simulator failed"; }
    simulating=
  fi
  (program compare "$work/azure" "$work/simulator")
fi
