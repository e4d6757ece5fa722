#!/bin/sh -e
# Stands in for kubeadm: it takes what kubeadm join takes, and starts kubelet.
[ "$1 $2" = "join --config" ]
grep -q JoinConfiguration "$3"
cp "$3" /root/joined.yaml
systemctl enable --now kubelet.service
