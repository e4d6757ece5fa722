#!/bin/bash
trap 'kill $pid; wait $pid; exit 0' TERM
mkdir -p /etc/k0s/containerd.d /run/k0s
setup() {
  [ ! -e /etc/k0s/containerd.toml ] || [ "$(head -1 /etc/k0s/containerd.toml)" = "# k0s_managed=true" ] || return
  { printf '# k0s_managed=true\nversion = 3\nimports = ['; for f in /etc/k0s/containerd.d/*.toml /run/k0s/containerd-cri.toml; do [ -e "$f" ] && printf '"%s", ' "$f"; done; printf ']\n'; } >/etc/k0s/containerd.toml
}
printf 'version = 3\n[plugins."io.containerd.cri.v1.runtime".cni]\n  bin_dir = "/opt/cni/bin"\n' >/run/k0s/containerd-cri.toml
state() { stat -c '%n %Z' /etc/k0s/containerd.d /etc/k0s/containerd.d/* 2>/dev/null; }
setup; old=$(state)
while :; do
  /var/lib/k0s/bin/containerd ARGS & pid=$!
  while kill -0 $pid 2>/dev/null; do
    sleep 0.3; new=$(state)
    if [ "$new" != "$old" ]; then sleep 3; old=$(state); setup; kill -HUP $pid; wait $pid; fi
  done
done
