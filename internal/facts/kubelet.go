// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"bytes"
	"context"
	"encoding/json"
	"path"
	"strings"
)

// kubelet tells what is known of the kubelet from its unit, its command line and its config files.
func (l *look) kubelet(ctx context.Context, engines []Engine) Kubelet {
	k := Kubelet{Binary: l.first("/usr/bin/kubelet", "/usr/local/bin/kubelet", "/opt/bin/kubelet", "/home/kubernetes/bin/kubelet")}
	s := l.service(ctx, "kubelet.service")
	if s == nil && k.Binary == "" {
		return l.embeddedKubelet(engines)
	}
	var argv []string
	if s != nil {
		k.Unit = s.name
		for _, line := range s.requires {
			k.Requires = append(k.Requires, strings.Fields(line)...)
		}
		if argv = l.argv(s); len(argv) == 0 || path.Base(argv[0]) != "kubelet" {
			argv = nil // a wrapper's
		} else if path.IsAbs(argv[0]) && l.has(argv[0]) {
			k.Binary = argv[0]
		}
	}
	k.Config = option(argv, "config")
	if k.Config == "" {
		k.Config = l.first("/var/lib/kubelet/config.yaml") // kubeadm's place
	}
	if k.Config != "" {
		k.merge(l.read(k.Config))
	}
	if dir := option(argv, "config-dir"); dir != "" {
		l.mergeDir(&k, dir)
	}
	// Flags win over files: https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/
	k.CgroupDriver = or(option(argv, "cgroup-driver"), k.CgroupDriver)
	k.Endpoint = or(option(argv, "container-runtime-endpoint"), k.Endpoint)
	if k.Binary != "" {
		// It is not run to tell its version: that takes longer than all else here.
		k.Version = l.version(ctx, k.Binary, program{packages: []string{"kubelet"}, module: "k8s.io/kubernetes"}).version
	}
	return k
}

// embeddedKubelet is the kubelet that is a part of K3s or RKE2. They configure it with a folder of files.
func (l *look) embeddedKubelet(engines []Engine) Kubelet {
	var k Kubelet
	for _, e := range engines {
		if e.Owner != "k3s" && e.Owner != "rke2" {
			continue
		}
		k.Unit = e.Unit
		data, _, _ := strings.Cut(e.Config, "/agent/")
		l.mergeDir(&k, data+"/agent/etc/kubelet.conf.d")
		k.Endpoint = or(k.Endpoint, "unix://"+e.Socket)
		if e.Owner == "rke2" {
			k.Binary = l.first(data + "/bin/kubelet")
		}
		break
	}
	return k
}

// mergeDir reads a folder of config files by name, those that end in .conf.
func (l *look) mergeDir(k *Kubelet, dir string) {
	for _, f := range l.walk(dir, 0) {
		if strings.HasSuffix(f, ".conf") {
			k.merge(l.read(f))
		}
	}
}

// merge takes what a KubeletConfiguration says over what was known before.
func (k *Kubelet) merge(data []byte) {
	driver, endpoint := topLevel(string(data), "cgroupDriver"), topLevel(string(data), "containerRuntimeEndpoint")
	if trimmed := bytes.TrimSpace(data); len(trimmed) > 0 && trimmed[0] == '{' {
		var c struct {
			CgroupDriver             string
			ContainerRuntimeEndpoint string
		}
		if json.Unmarshal(trimmed, &c) != nil {
			return
		}
		driver, endpoint = c.CgroupDriver, c.ContainerRuntimeEndpoint
	}
	k.CgroupDriver = or(driver, k.CgroupDriver)
	k.Endpoint = or(endpoint, k.Endpoint)
}

// topLevel returns the scalar that a YAML document has under a key at its outermost level, "" if it has none. That is all
// that is needed of YAML here, and a broken file must not stop the look.
func topLevel(yaml, key string) string {
	for line := range strings.SplitSeq(yaml, "\n") {
		rest, ok := strings.CutPrefix(line, key)
		if !ok {
			continue
		}
		rest, ok = strings.CutPrefix(strings.TrimLeft(rest, " \t"), ":")
		if !ok {
			continue
		}
		rest = strings.TrimSpace(rest)
		if rest != "" && (rest[0] == '"' || rest[0] == '\'') {
			inner, _, _ := strings.Cut(rest[1:], rest[:1])
			return inner
		}
		if i := strings.Index(rest, " #"); i >= 0 {
			rest = rest[:i]
		}
		if strings.HasPrefix(rest, "#") {
			return ""
		}
		return strings.TrimSpace(rest)
	}
	return ""
}
