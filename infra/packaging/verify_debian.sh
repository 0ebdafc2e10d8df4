# shellcheck shell=bash disable=SC2154,SC2317 # variables and callers are in infra/verify.sh
# The .deb of infra/verify.sh: on a machine that boots, from its install to its purge.

# --- The machine: boot ROOT, then `there COMMAND`.

boot() {
  unshare -n -m -p -C -f --kill-child bash "$here/packaging/machine.sh" "$work/$1" "$files" \
    </dev/null >"$work/$1.systemd.log" 2>&1 &
  started+=($!)
  # Its first child is the systemd.
  child() { machine=$(cut -d' ' -f1 "/proc/$1/task/$1/children" 2>/dev/null) && [ -n "$machine" ]; }
  soon child $!
  ok "systemd of $1 is process 1" soon there systemctl is-active --quiet multi-user.target
}

there() {
  nsenter -t "$machine" -m -p -C -n -r -w \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@" </dev/null
}
here_in_its_network() { nsenter -t "$machine" -n "$@"; }

# simulate PORT [OPTION]…: IMDS at PORT, the receiver of webhooks at PORT + 1.
simulate() {
  local port=$1
  shift
  # By no function: the process that is noted must be the simulator itself.
  nsenter -t "$machine" -n sebridge simulate --imds-port "$port" --inbox-port "$((port + 1))" "$@" \
    >"$work/simulate.$port.log" 2>&1 &
  started+=($!)
  soon grep -q imds "$work/simulate.$port.log"
}

received() {
  here_in_its_network python3 - "$1" "$2" <<'PYTHON'
import sys, urllib.request
body = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/messages", timeout=5).read()
sys.exit(sys.argv[2].encode() not in body)
PYTHON
}

# --- The .deb there.

process_id() { there systemctl show -p MainPID --value sebridge.service; }
waiting() { there sebridge outbox list -c /etc/sebridge/bridge.toml --sink later --state pending | grep -c pending; }
install() { there dpkg -i "/files/$1/$(cd "$files/$1" && ls ./scheduled-events-bridge_*.deb)"; }
is_new() { [ "$(process_id)" != "$1" ]; }
stays() { [ "$(process_id)" = "$1" ]; }
waits() { [ "$(waiting)" -ge "$1" ]; }

debian() {
  local before
  artefacts
  root_of "$1"
  step "the .deb on Debian $(cat "$work/$1/etc/debian_version")"
  boot "$1"
  ok "no network: $(there python3 -c 'import socket
try: socket.create_connection(("192.0.2.1", 443), 2)
except OSError as error: print(error)')" no there python3 -c \
    'import socket; socket.create_connection(("192.0.2.1", 443), 2)'
  ok "install" install present
  sed 's/^/       | /' "$work/last.log" | grep -aE 'has no settings|Setting up' || true
  ok "Python $(there /opt/sebridge/bin/python -c 'import sys; print(sys.version.split()[0])'), $(there sebridge --version)" \
    there sebridge --version
  ok "account, unit enabled, completion, manual page" there sh -c \
    'id sebridge && systemctl is-enabled sebridge && test -s /usr/share/bash-completion/completions/sebridge && gzip -t /usr/share/man/man1/sebridge.1.gz'
  ok "not started without a configuration" no there systemctl is-active --quiet sebridge
  simulate 18080 --scenario live-migration --speed 10
  config >"$files/bridge.toml"
  there install -m 0640 -g sebridge /files/bridge.toml /etc/sebridge/bridge.toml
  ok "sebridge check" there sebridge check -c /etc/sebridge/bridge.toml
  ok "systemctl restart sebridge" there systemctl restart sebridge
  ok "it answers: $(soon there sebridge status -c /etc/sebridge/bridge.toml >/dev/null 2>&1; there sebridge status -c /etc/sebridge/bridge.toml | head -n 1)" \
    there sebridge status -c /etc/sebridge/bridge.toml
  ok "an event travels from IMDS to the webhook" soon received 18081 scheduledevent.scheduled
  ok "deliveries wait for a sink that is away" soon waits 1
  before=$(process_id)
  ok "the same package again restarts nothing" install present
  ok "the same process runs" stays "$before"
  # What waits now must outlive every change of the version.
  count=$(waiting)
  ok "downgrade to the version before the last change of the state file" install older
  ok "another process runs, $(waiting) deliveries wait ($count before)" is_new "$before"
  ok "none is lost" waits "$count"
  before=$(process_id)
  ok "upgrade" install present
  ok "another process runs, $(waiting) deliveries wait" is_new "$before"
  ok "none is lost" waits "$count"
  ok "a version that does not start is refused" no install broken
  grep -aE '^! ' "$work/last.log" | sed 's/^/       | /' || true
  ok "the version before runs" soon there sebridge status -c /etc/sebridge/bridge.toml
  ok "and is whole again after its package is installed" install present
  before=$(process_id)
  ok "sebridge-setup --rollback" there sebridge-setup --rollback
  ok "sebridge-setup --rollback, and forth" there sebridge-setup --rollback
  ok "none is lost" waits "$count"
  simulate 18090
  ok "the sink is back, and what waited is delivered" soon received 18091 scheduledevent.scheduled
  ok "remove" there dpkg -r scheduled-events-bridge
  ok "the program is gone; configuration and state stay" there sh -c \
    'test ! -e /opt/sebridge && test ! -e /opt/sebridge-versions && test -s /etc/sebridge/bridge.toml && test -s /var/lib/sebridge/state.db && ! systemctl is-active --quiet sebridge'
  ok "install again: configured as it is, it runs" install present
  ok "it answers" soon there sebridge status -c /etc/sebridge/bridge.toml
  ok "purge" there dpkg -P scheduled-events-bridge
  # shellcheck disable=SC2016 # the shell there reads it
  ok "nothing is left" there sh -c \
    'test -z "$(find / -xdev -path /files -prune -o -path /proc -prune -o -name "*sebridge*" -print)" && ! id sebridge'
  end
}
