#!/bin/bash
trap 'kill $pid; wait $pid; exit 0' TERM
mkdir -p /etc/k0s/containerd.d /run/k0s
cri='io.containerd.grpc.v1.cri'
setup() {
  { echo 'version = 2'; /var/lib/k0s/bin/containerd config default | awk -v cri="$cri" '/^ *\[/ {on = index($0, cri)} on'
    for f in /etc/k0s/containerd.d/*.toml; do [ -e "$f" ] && grep -q "$cri" "$f" && { echo; grep -v '^version' "$f"; }; done; } >/run/k0s/containerd-cri.toml
  { printf '# k0s_managed=true\nversion = 2\nimports = ['; for f in /etc/k0s/containerd.d/*.toml; do [ -e "$f" ] && ! grep -q "$cri" "$f" && printf '"%s", ' "$f"; done
    printf '"/run/k0s/containerd-cri.toml"]\n'; } >/etc/k0s/containerd.toml
}
state() { stat -c '%n %Z' /etc/k0s/containerd.d /etc/k0s/containerd.d/* 2>/dev/null; }
setup; old=$(state)
while :; do
  /var/lib/k0s/bin/containerd ARGS & pid=$!
  while kill -0 $pid 2>/dev/null; do
    sleep 0.3; new=$(state)
    if [ "$new" != "$old" ]; then sleep 3; old=$(state); setup; kill -HUP $pid; wait $pid; fi
  done
done
