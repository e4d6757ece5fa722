// SPDX-License-Identifier: Apache-2.0

// Package content says what a file is that is not what it was expected to be: a web page in the
// place of a key, another tool's configuration in the place of node.toml. It imports no package of
// gpuadm.
package content

import (
	"bytes"
	"regexp"
	"strings"
	"sync"
)

// Of names what the bytes of a file are, with its article: "a web page". "" if they show nothing
// that it knows.
func Of(data []byte) string {
	for _, k := range magics {
		if bytes.HasPrefix(data, []byte(k.begins)) {
			return k.is
		}
	}

	text := strings.TrimSpace(strings.TrimPrefix(string(data[:min(len(data), most)]), "\ufeff"))
	if text == "" {
		return "empty"
	}
	for _, k := range texts() {
		if k.like.MatchString(text) {
			return k.is(text)
		}
	}

	return ""
}

// most is how many bytes of a file are read to tell what it is.
const most = 16 << 10

// magics begin binary files. Sources: magic(5)'s files archive, compress, elf, rpm of
// https://github.com/file/file.
var magics = []struct{ begins, is string }{
	{"\x7fELF", "a program"},
	{"\x1f\x8b", "a gzip archive"},
	{"PK\x03\x04", "a zip archive"},
	{"\xfd7zXZ", "an xz archive"},
	{"\x28\xb5\x2f\xfd", "a zstd archive"},
	{"!<arch>\ndebian", "a Debian package"},
	{"\xed\xab\xee\xdb", "an RPM package"},
}

// A form is a text that an expression recognizes.
type form struct {
	like *regexp.Regexp
	is   func(text string) string
}

// texts are recognized in this order. Sources of the TOML of others: containerd's
// docs/cri/config.md, crio.conf(5), https://github.com/NVIDIA/nvidia-container-toolkit
// (internal/config), and
// https://bottlerocket.dev/en/os/latest/#/api/settings/.
var texts = sync.OnceValue(func() []form {
	is := func(what string) func(string) string {
		return func(string) string { return what }
	}
	return []form{
		{regexp.MustCompile(`(?i)^(?:<!--[^>]*-->\s*)?<(?:!doctype html|html|head|body)\b`), is("a web page (HTML)")},
		{regexp.MustCompile(`^<\?xml\b`), is("XML")},
		{regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY`), is("a private key")},
		{regexp.MustCompile(`^-----BEGIN PGP PUBLIC KEY BLOCK-----`), is("an OpenPGP key")},
		{regexp.MustCompile(`-----BEGIN (?:TRUSTED )?CERTIFICATE-----`), is("a certificate")},
		{regexp.MustCompile(`^#cloud-config\b`), is("cloud-init's user data")},
		{regexp.MustCompile(`^#!`), is("a script")},
		{regexp.MustCompile(`^(?:diff --git|--- a/)`), is("a diff")},
		{regexp.MustCompile(`(?m)^kind:[ \t]*["']?[A-Z]\w*`), kubernetesKind},
		{regexp.MustCompile(`(?m)^mig-configs:`), is("a file in mig-parted's format")},
		{regexp.MustCompile(`(?m)^cdiVersion:`), is("a CDI spec")},
		{regexp.MustCompile(`(?m)^(?:deb(?:-src)? |Types:[ \t]*deb)`), is("a list of apt's sources")},
		{regexp.MustCompile(`(?m)^(?:baseurl|mirrorlist|metalink)[ \t]*=`), is("a repository file of dnf")},
		{regexp.MustCompile(`(?m)^\[(?:Unit|Service|Install)\]`), is("a unit of systemd")},
		{regexp.MustCompile(`^\{\s*(?:"|\})`), is("JSON")},
		{regexp.MustCompile(`(?m)^(?:build|data|locals|module|output|packer|provider|resource|source|terraform|variable)\b[^=\n]*\{\s*$`), is("HCL, of Terraform or Packer")},
		{regexp.MustCompile(`(?m)^FROM [\w./-]+`), is("a Dockerfile")},
		{regexp.MustCompile(`(?m)^(?:options \w+ \w+=|blacklist \w+\s*$)`), is("a file of modprobe.d")},
		{regexp.MustCompile(`(?m)^export \w+=`), is("a shell script")},
		{regexp.MustCompile(`(?m)^\s*\[plugins[.\]]`), is("containerd's configuration")},
		{regexp.MustCompile(`(?m)^\s*\[crio[.\]]`), is("CRI-O's configuration")},
		{regexp.MustCompile(`(?m)^\s*\[nvidia-container-(?:cli|runtime)[.\]-]`), is("the configuration of NVIDIA's Container Toolkit")},
		{regexp.MustCompile(`(?m)^\[settings[.\]]`), is("Bottlerocket's settings")},
		{regexp.MustCompile(`(?m)^\[\[?[\w."-]+\]\]?[ \t]*(?:#.*)?$`), is("TOML")},
		{regexp.MustCompile(`(?m)^[\w-]+[ \t]*=[ \t]*["'\[{0-9tf]`), is("TOML")},
		{regexp.MustCompile(`(?m)^(?:---[ \t]*$|[\w-]+:(?:[ \t]|$))`), is("YAML")},
	}
})

// kubernetesKind names a Kubernetes object of a well-known kind. It repeats no other word of the
// file, which may be private.
func kubernetesKind(text string) string {
	kind := regexp.MustCompile(`(?m)^kind:[ \t]*["']?([A-Z]\w*)`).FindStringSubmatch(text)[1]
	switch kind {
	case "Config":
		return "a kubeconfig"
	case "ConfigMap", "Secret", "DaemonSet", "Deployment", "Pod",
		"ClusterConfiguration", "InitConfiguration", "JoinConfiguration", "KubeletConfiguration",
		"ClusterPolicy", "NVIDIADriver",
		"NodeConfig", "ClusterConfig", "NodePool", "EC2NodeClass", "AKSNodeClass":
		return "a Kubernetes " + kind
	}

	return "a Kubernetes object"
}
