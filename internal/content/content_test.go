// SPDX-License-Identifier: Apache-2.0

package content

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

func TestOf(t *testing.T) {
	for _, tt := range []struct{ data, want string }{
		{"", "empty"},
		{" \n\t\n", "empty"},
		{"<!DOCTYPE html>\n<html><body>404</body></html>\n", "a web page (HTML)"},
		{"\n<HTML><HEAD><TITLE>Sign in</TITLE>", "a web page (HTML)"},
		{"<?xml version=\"1.0\"?>\n<repomd/>", "XML"},
		{"-----BEGIN OPENSSH PRIVATE KEY-----\nAAA", "a private key"},
		{"-----BEGIN CERTIFICATE-----\nMII", "a certificate"},
		{"-----BEGIN PGP PUBLIC KEY BLOCK-----\n", "an OpenPGP key"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  config.yaml: |\n    mig-configs:\n", "a Kubernetes ConfigMap"},
		{"kind: PLANTED\n", "a Kubernetes object"},
		{"apiVersion: v1\nkind: Config\nclusters: []\n", "a kubeconfig"},
		{"version: v1\nmig-configs:\n  all: []\n", "a file in mig-parted's format"},
		{"format = 1\n[[mig.gpu]]\n", "TOML"},
		{"version = 2\n", "TOML"},
		{"a: 1\nb:\n  - c\n", "YAML"},
		{"---\n- a\n", "YAML"},
		{"{\"a\": 1}", "JSON"},
		{"deb https://archive.example/debian bookworm main\n", "a list of apt's sources"},
		{"[cuda]\nname=cuda\nbaseurl=https://x\n", "a repository file of dnf"},
		{"#!/bin/sh\nexit 0\n", "a script"},
		{"\x7fELF\x02", "a program"},
		{"!<arch>\ndebian-binary", "a Debian package"},
		{"#cloud-config\npackages:\n- nvidia\n", "cloud-init's user data"},
		{"--- a/node.toml\n+++ b/node.toml\n", "a diff"},
		{"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", "a CDI spec"},
		{"source \"amazon-ebs\" \"gpu\" {\n  ami = \"a\"\n}\n", "HCL, of Terraform or Packer"},
		{"FROM nvidia/cuda:12.9.0-base-ubuntu24.04\nRUN true\n", "a Dockerfile"},
		{"options nvidia NVreg_EnableGpuFirmware=1\n", "a file of modprobe.d"},
		{"export DRIVER=580\n", "a shell script"},
		{"version = 3\n[plugins.\"io.containerd.cri\"]\n", "containerd's configuration"},
		{"[crio.runtime]\ndefault_runtime = \"nvidia\"\n", "CRI-O's configuration"},
		{"[nvidia-container-runtime]\n", "the configuration of NVIDIA's Container Toolkit"},
		{"[settings.kubernetes]\ncluster-name = \"a\"\n", "Bottlerocket's settings"},
		{"apiVersion: v1\nkind: JoinConfiguration\n", "a Kubernetes JoinConfiguration"},
		{"Hello, world", ""},
		{"\x99\x01\x0d\x04", ""}, // a binary OpenPGP key
	} {
		check.Equal(t, Of([]byte(tt.data)), tt.want, "%.40q:", tt.data)
	}
}
