// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// unit returns the unit file of kubelet and its text. If a package has a unit, gpuadm writes a
// drop-in with the whole command line, which replaces that of the package's drop-ins with its
// bootstrap kubeconfig.
func (k Own) unit(f facts.Facts, e facts.Engine) (name, text string, err error) {
	for _, word := range append(slices.Clone(k.Flags), Pairs(k.Env)...) {
		if strings.ContainsAny(word, "\n\r\x00") {
			return "", "", fmt.Errorf("internal error: a line break in kubelet's command line")
		}
	}
	var b strings.Builder
	b.WriteString(Written + "\n[Unit]\n")
	theirs := theirUnit(f)
	if !theirs {
		b.WriteString("Description=kubelet, the node agent of Kubernetes\nDocumentation=https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/\n")
	}
	// Not Requires=: a restart of the engine would restart kubelet with it.
	fmt.Fprintf(&b, "Wants=network-online.target %s\nAfter=network-online.target %[1]s\n", engineUnit(e))
	b.WriteString("# Start it again and again, until the API server and the GPUs are ready.\nStartLimitIntervalSec=0\n\n[Service]\n")
	for _, pair := range Pairs(k.Env) {
		fmt.Fprintf(&b, "Environment=%s\n", systemdWord(pair))
	}
	if theirs {
		b.WriteString("ExecStart=\n")
	}
	b.WriteString("ExecStart=" + strings.Join(k.argv(f), " "))
	if theirs && mentions(f.Kubelet.Files, extraArgs) {
		b.WriteString(" $" + extraArgs) // the packages' variable for an administrator's flags
	}
	b.WriteString("\nRestart=always\nRestartSec=5\n")
	if theirs {
		return DropIn, b.String(), nil
	}
	b.WriteString("\n[Install]\nWantedBy=multi-user.target\n")
	return UnitFile, b.String(), nil
}

// argv returns kubelet's command line, quoted for systemd.
func (k Own) argv(f facts.Facts) []string {
	words := []string{f.Kubelet.Binary, "--config=" + ConfigFile, "--kubeconfig=" + Kubeconfig, "--hostname-override=" + k.Name}
	if len(k.Labels) > 0 {
		words = append(words, "--node-labels="+strings.Join(Pairs(k.Labels), ","))
	}
	words = append(words, k.Flags...)
	for i := range words {
		words[i] = systemdWord(words[i])
	}
	return words
}

// theirUnit says whether kubelet has a unit that gpuadm did not write.
func theirUnit(f facts.Facts) bool {
	return f.Kubelet.Unit != "" && !bytes.HasPrefix(f.Files[UnitFile], []byte(Written))
}

// mentions says whether a file that gpuadm did not write contains a word.
func mentions(files []facts.File, word string) bool {
	return slices.ContainsFunc(files, func(at facts.File) bool {
		return !bytes.HasPrefix(at.Data, []byte(Written)) && bytes.Contains(at.Data, []byte(word))
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

// extraArgs is the packages' variable for an administrator's flags. They come last on kubelet's
// command line, and so win over gpuadm's, and over the configuration file.
const extraArgs = "KUBELET_EXTRA_ARGS"

// extraFits refuses an administrator's flags that contradict the join: kubelet would register under
// another name, with other taints, or with another cluster.
func (k Own) extraFits(f facts.Facts) error {
	if !theirUnit(f) {
		return nil
	}
	for _, file := range f.Kubelet.Files {
		words := append([]string{"kubelet"}, wordsOf(file.Data, extraArgs)...)
		for _, c := range []struct{ flag, ours, try string }{
			{"hostname-override", k.Name, "write it as node_name = %q in [join] if that is the name"},
			{taintFlag, strings.Join(TaintTexts(k.Taints), ","), "write %q as taints in [node]"},
			{"config", ConfigFile, "write the keys of %s that differ into a file, and name it as kubelet_config in [join]"},
			{"kubeconfig", Kubeconfig, "the join has another than %s"},
			{"bootstrap-kubeconfig", "", "the join has another than %s"},
		} {
			values := facts.Options(words, c.flag)
			if len(values) == 0 || values[len(values)-1] == c.ours || c.flag == taintFlag && c.ours == "" {
				continue
			}
			return &trouble.Error{
				What:    fmt.Sprintf("cannot join: %s states --%s, which would win over [join]", file.Path, c.flag),
				Because: []string{extraArgs + " comes last on kubelet's command line"},
				Try:     []string{fmt.Sprintf("take --%s out of %s in %s; "+c.try, c.flag, extraArgs, file.Path, values[len(values)-1])},
			}
		}
	}
	return nil
}

// systemdWord quotes one word of a command line or an assignment for systemd: systemd.service(5),
// "Command lines": % begins a specifier, and $ a variable, except in Environment=.
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

// Pairs returns the pairs of a table as key=value, in order.
func Pairs(table map[string]string) (pairs []string) {
	for _, key := range sorted(table) {
		pairs = append(pairs, key+"="+table[key])
	}
	return pairs
}

// ProxyEnv returns the environment that makes kubelet use the proxies of [proxy].
func ProxyEnv(s spec.Spec) map[string]string {
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
