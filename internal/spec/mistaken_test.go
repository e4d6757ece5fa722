// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestMistaken: what an operator meant is recognised: the path of a secret is not a secret, a relative
// path is not moved to a folder of gpuadm's, and a hint does not lead to the next error.
func TestMistaken(t *testing.T) {
	const kubeadm = "kubeadm join"
	for _, tt := range []struct{ text, what, line, fix string }{
		{"format = 1\n[join]\ntoken_file = \"/etc/gpuadm/token\"\n", `unknown key "token_file" in [join]`, `token_file = "/etc/gpuadm/token"`, kubeadm},
		{"format = 1\n[join]\nca_pin = \"sha256:00\"\n", `unknown key "ca_pin"`, "ca_pin", kubeadm},
		{"format = 1\n[join]\nmethod = \"token\"\n", `method cannot be "token"`, "token", kubeadm},
		{
			"format = 1\n[node]\ncredentials_path = '/srv/x/creds'\n",
			`unknown key "credentials_path"`, "/srv/x/creds",
			"[node] has",
		},
		{"format = 1\n[join]\ntoken = \"/etc/gpuadm/token\"\n", `unknown key "token"`, "/etc/gpuadm/token", kubeadm},

		// These may be secrets: the text of a base64 may begin with a slash.
		{"format = 1\n[join]\ntoken = \"abcdef.0123456789abcdef\"\n", "must not contain a secret", "token = ***", "take it out"},
		{"format = 1\n[join]\ntoken = \"/9j4AAQSkZJRg\"\n", "must not contain a secret", "token = ***", "take it out"},
		{
			"format = 1\n[join]\ntoken_file = \"abcdef.0123456789abcdef\"\n",
			"must not contain a secret", "token_file = ***",
			"take it out",
		},
		{
			"format = 1\n[join]\ntoken_file = \"/etc/abcdef.0123456789abcdef\"\n",
			"must not contain a secret", "***",
			"take it out",
		},
		{"format = 1\n[join]\npassword = \"/etc/x\" # hunter2\n", "unknown key", "***", "[join] has"},

		{
			"format = 1\n[runtime]\nconfig = \"etc/containerd/config.toml\"\n",
			"is not an absolute path", "config",
			`did you mean "/etc/containerd/config.toml"?`,
		},
		{"format = 1\n[mig]\nfile = \"config.yaml\"\n", "is not an absolute path", "file", "write the whole path, from / on"},
		{"format = 1\n[mig]\nfile = \"../config.yaml\"\n", "is not an absolute path", "file", "write the whole path, from / on"},

		{"format = v1\n[driver]\n", `"v1" is not an integer`, "format", "write format = 1"},
		{"format = 1 // the format\n[driver]\n", "is not an integer", "format", "a comment begins with #"},
		{"format = \"2\"\n[driver]\n", "format must be an integer", "format", "write format = 1"},
		{"format = 1\n[sharing]\ntime_slicing = \"4\"\n", "must be an integer", "time_slicing", "write time_slicing = 4"},
		{"format = 1\n[sharing]\ntime_slicing = \"1\"\n", "must be an integer", "time_slicing", "a whole number, such as 2"},
		{"format = 1\n[sharing]\nmps = \"1\"\n", "must be an integer", "mps", "a whole number, such as 2"},
		{"format = 1\n[driver]\ngpu_count = \"99999999\"\n", "must be an integer", "gpu_count", "a whole number, such as 2"},
		{"format = 1\napiVersion = \"v1\"\n", `unknown key "apiVersion"`, "apiVersion", "take it out"},
		{"format = 1\nkind = \"Node\"\n", `unknown key "kind"`, "kind", "take it out"},

		{"apiVersion: v1\nkind: ConfigMap\n", "this is a Kubernetes ConfigMap", "apiVersion", "a spec is TOML"},
		{"<!DOCTYPE html>\n<html></html>\n", "this is a web page", "<!DOCTYPE", "a spec is TOML"},
		{"-----BEGIN CERTIFICATE-----\nMII\n", "this is a certificate", "-----BEGIN", "a spec is TOML"},
	} {
		_, err := spec.Parse(spec.File{Name: "n.toml", Data: []byte(tt.text)})
		var faults trouble.Faults
		must.That(t, errors.As(err, &faults), "%q: %v", tt.text, err)

		f := faults[0]
		fix := strings.Join(f.Try, "; ")
		check.That(t, strings.Contains(f.What, tt.what), "%q: %q, want %q", tt.text, f.What, tt.what)
		check.That(t, strings.Contains(f.At.Text, tt.line), "%q shows %q, want %q", tt.text, f.At.Text, tt.line)
		check.That(t, strings.Contains(fix, tt.fix), "%q: fix %q, want %q", tt.text, fix, tt.fix)
	}
}
