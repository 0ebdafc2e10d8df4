# shellcheck shell=bash
# What infra/acceptance.sh has the VM do, as root, by `az vm run-command`. That says
# nothing of an exit code: the line that is added behind the call prints that it is done.
set -eu
source=/opt/sebridge-setup/source
config=/etc/sebridge/bridge.toml
records=/var/lib/sebridge-acceptance

ready() { cloud-init status --wait --long; }

doctor() { sebridge check -c "$config" --connect; }

# witness: record IMDS and what is sent to Slack, from now on and after each reboot.
witness() {
  mkdir -p "$records"
  cat >/etc/systemd/system/sebridge-witness.service <<UNIT
[Service]
ExecStart=/usr/bin/python3 $source/infra/acceptance/witness.py --out $records/witness.jsonl
Restart=always
[Install]
WantedBy=multi-user.target
UNIT
  systemctl daemon-reload
  systemctl enable --now sebridge-witness.service
  if ! grep -q slack-stand-in "$config"; then
    cat "$source/infra/acceptance/slack.toml" >>"$config"
    systemctl restart sebridge.service
  fi
}

# send ADDRESS: put the records into a blob; run-command shows only 4,096 bytes.
send() {
  curl --fail --silent --show-error --retry 5 --request PUT \
    --header 'x-ms-blob-type: BlockBlob' --upload-file "$records/witness.jsonl" "$1"
}
