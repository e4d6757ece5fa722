// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// unit returns the unit file of kubelet and its text. If a package has a unit, gpuadm writes a
// drop-in with the whole command line, which replaces that of the package's drop-ins with its
// bootstrap kubeconfig.
func (k Own) unit(f facts.Facts, e facts.Engine) (name, text string, err error) {
	for _, word := range slices.Concat(k.Flags, Pairs(k.Env)) {
		if strings.ContainsAny(word, "\n\r\x00") {
			return "", "", errors.New("internal error: a line break in kubelet's command line")
		}
	}

	dropIn := hasPackagedUnit(f)
	var b strings.Builder
	b.WriteString(Written)

	b.WriteString("\n[Unit]\n")
	if !dropIn {
		b.WriteString("Description=kubelet, the node agent of Kubernetes\n")
		b.WriteString("Documentation=https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/\n")
	}
	// Not Requires=: a restart of the engine would restart kubelet with it.
	fmt.Fprintf(&b, "Wants=network-online.target %s\n", engineUnit(e))
	fmt.Fprintf(&b, "After=network-online.target %s\n", engineUnit(e))
	b.WriteString("# Start it again and again, until the API server and the GPUs are ready.\n")
	b.WriteString("StartLimitIntervalSec=0\n")

	b.WriteString("\n[Service]\n")
	for _, pair := range Pairs(k.Env) {
		fmt.Fprintf(&b, "Environment=%s\n", quoted(pair))
	}
	if dropIn {
		b.WriteString("ExecStart=\n") // drops the package's command line
	}
	b.WriteString("ExecStart=" + strings.Join(k.argv(f), " "))
	if dropIn && mentioned(f.Kubelet.Files, extraArgs) {
		b.WriteString(" $" + extraArgs) // the packages' variable for an administrator's flags
	}
	b.WriteString("\nRestart=always\nRestartSec=5\n")

	if dropIn {
		return DropIn, b.String(), nil
	}
	b.WriteString("\n[Install]\nWantedBy=multi-user.target\n")
	return UnitFile, b.String(), nil
}

// argv returns kubelet's command line, quoted for systemd.
func (k Own) argv(f facts.Facts) []string {
	words := []string{
		f.Kubelet.Binary,
		"--config=" + ConfigFile,
		"--kubeconfig=" + Kubeconfig,
		"--hostname-override=" + k.Name,
	}
	if len(k.Labels) > 0 {
		words = append(words, "--node-labels="+strings.Join(Pairs(k.Labels), ","))
	}
	words = append(words, k.Flags...)

	for i := range words {
		words[i] = argument(words[i])
	}
	return words
}

// hasPackagedUnit says whether kubelet has a unit that gpuadm did not write.
func hasPackagedUnit(f facts.Facts) bool {
	return f.Kubelet.Unit != "" && !bytes.HasPrefix(f.Files[UnitFile], []byte(Written))
}

// mentioned says whether a file that gpuadm did not write contains a word.
func mentioned(files []facts.File, word string) bool {
	return slices.ContainsFunc(files, func(file facts.File) bool {
		isOwn := bytes.HasPrefix(file.Data, []byte(Written))
		return !isOwn && bytes.Contains(file.Data, []byte(word))
	})
}

// argument quotes one word of a command line for systemd, for which $ begins a variable there.
func argument(word string) string { return quoted(strings.ReplaceAll(word, "$", "$$")) }

// quoted quotes a word for systemd: systemd.service(5), "Command lines": % begins a specifier.
func quoted(word string) string {
	word = strings.ReplaceAll(word, "%", "%%")
	if !strings.ContainsAny(word, " \t\"'\\;") {
		return word
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}

// Pairs returns the pairs of a table as key=value, in order.
func Pairs(table map[string]string) (pairs []string) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		pairs = append(pairs, key+"="+table[key])
	}
	return pairs
}

// ProxyEnv returns the environment that makes kubelet use the proxies of [proxy].
func ProxyEnv(s spec.Spec) map[string]string {
	if s.Proxy.HTTP == "" && s.Proxy.HTTPS == "" {
		return nil
	}
	env := map[string]string{
		"HTTP_PROXY":  s.Proxy.HTTP,
		"HTTPS_PROXY": s.Proxy.HTTPS,
		"NO_PROXY":    strings.Join(s.Proxy.NoProxy, ","),
	}
	maps.DeleteFunc(env, func(_, value string) bool { return value == "" })
	return env
}
