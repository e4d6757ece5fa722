// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// unit returns which file makes kubelet run, and what it says. Where a package brings a unit, a drop-in of ours states the
// whole command line: whatever the package's own drop-ins say of a bootstrap kubeconfig does not hold then. Else the unit is
// ours.
func (k ownKubelet) unit(s spec.Spec, f facts.Facts, e facts.Engine, labels map[string]string) (name, text string, err error) {
	for _, word := range append(slices.Clone(k.Flags), sortedPairs(k.Env)...) {
		if strings.ContainsAny(word, "\n\r\x00") {
			return "", "", fmt.Errorf("internal error: a line break in kubelet's command line")
		}
	}
	var b strings.Builder
	b.WriteString(written + "\n[Unit]\n")
	theirs := theirUnit(f)
	if !theirs {
		b.WriteString("Description=kubelet, the node agent of Kubernetes\nDocumentation=https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/\n")
	}
	after := append([]string{"network-online.target", engineUnit(e)}, k.After...)
	// Not Requires=: a restart of the engine would restart kubelet with it.
	fmt.Fprintf(&b, "Wants=%s\nAfter=%[1]s\n", strings.Join(after, " "))
	b.WriteString("# It goes on trying for as long as the API server or the GPUs keep it waiting.\nStartLimitIntervalSec=0\n\n[Service]\n")
	for _, pair := range sortedPairs(k.Env) {
		fmt.Fprintf(&b, "Environment=%s\n", systemdWord(pair))
	}
	if theirs {
		b.WriteString("ExecStart=\n")
	}
	b.WriteString("ExecStart=" + strings.Join(k.argv(s, f, labels), " "))
	if theirs && mentions(f.Kubelet.Files, extraArgs) {
		b.WriteString(" $" + extraArgs) // the packages' place for an administrator's flags
	}
	b.WriteString("\nRestart=always\nRestartSec=5\n")
	if theirs {
		return kubeletDropIn, b.String(), nil
	}
	b.WriteString("\n[Install]\nWantedBy=multi-user.target\n")
	return kubeletUnitFile, b.String(), nil
}

// argv is kubelet's command line, in systemd's words.
func (k ownKubelet) argv(s spec.Spec, f facts.Facts, labels map[string]string) []string {
	words := []string{f.Kubelet.Binary, "--config=" + kubeletConfig, "--kubeconfig=" + k.Kubeconfig}
	if s.Join.NodeName != "" {
		words = append(words, "--hostname-override="+s.Join.NodeName)
	}
	if len(labels) > 0 {
		words = append(words, "--node-labels="+strings.Join(sortedPairs(labels), ","))
	}
	words = append(words, k.Flags...)
	for i := range words {
		words[i] = systemdWord(words[i])
	}
	return words
}

// theirUnit says whether somebody else's unit runs kubelet.
func theirUnit(f facts.Facts) bool {
	if f.Kubelet.Unit == "" {
		return false
	}
	return !bytes.HasPrefix(f.Files[kubeletUnitFile], []byte(written))
}

// mentions says whether one of the files, ours excepted, has a word.
func mentions(files []facts.File, word string) bool {
	return slices.ContainsFunc(files, func(at facts.File) bool {
		return !bytes.HasPrefix(at.Data, []byte(written)) && bytes.Contains(at.Data, []byte(word))
	})
}

func engineUnit(e facts.Engine) string {
	switch {
	case e.Unit != "":
		return e.Unit
	case e.Name == "crio":
		return "crio.service"
	}
	return "containerd.service"
}

// systemdWord writes one word of a command line or an assignment as systemd reads it back: systemd.service(5), "Command
// lines": % begins a specifier and $ a variable. In Environment= a $ stays as it is.
func systemdWord(word string) string {
	assignment := !strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "/")
	word = strings.ReplaceAll(word, "%", "%%")
	if !assignment {
		word = strings.ReplaceAll(word, "$", "$$")
	}
	if !strings.ContainsAny(word, " \t\"'\\;") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}

// sortedPairs are the pairs of a table as key=value, in order.
func sortedPairs(table map[string]string) (pairs []string) {
	for _, key := range sorted(table) {
		pairs = append(pairs, key+"="+table[key])
	}
	return pairs
}

// proxyEnv is the environment by which kubelet reaches the API server as we do.
func proxyEnv(s spec.Spec) map[string]string {
	env := map[string]string{}
	for name, value := range map[string]string{"HTTP_PROXY": s.Proxy.HTTP, "HTTPS_PROXY": s.Proxy.HTTPS, "NO_PROXY": strings.Join(s.Proxy.NoProxy, ",")} {
		if value != "" {
			env[name] = value
		}
	}
	if env["HTTP_PROXY"] == "" && env["HTTPS_PROXY"] == "" {
		return nil
	}
	return env
}
