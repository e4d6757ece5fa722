#!/bin/bash
test -e /opt/azure/containers/provision.complete && exit 0
set -e
mkdir -p /etc/kubernetes/certs /var/lib/kubelet /var/log/azure
for f in $(cd /opt/azure/rendered && find . -type f); do install -D -m 0600 /opt/azure/rendered/$f /$f; done
systemctl restart containerd.service
systemctl enable --quiet kubelet.service
for try in $(seq 100); do
  timeout 30 systemctl restart kubelet.service && break
  echo "kubelet does not start, try $try" >>/var/log/azure/cluster-provision.log
  sleep 1
done
touch /opt/azure/containers/provision.complete
