// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/cloud"
	"github.com/gpuadm/gpuadm/cloud/aks"
	"github.com/gpuadm/gpuadm/cloud/gke"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestSealed: plan and apply refuse a node that its cloud makes as a whole, in the words of the cloud's page, and touch nothing.
func TestSealed(t *testing.T) {
	// As kubelet-env and kubelet-exec-start-conf of bottlerocket-os/bottlerocket-core-kit at a10182f9, packages/kubernetes-1.31.
	env := "-- etc/kubernetes/kubelet/env --\nNODE_IP=10.0.1.23\nNODE_LABELS=karpenter.sh/nodepool=gpu,eks.amazonaws.com/compute-type=auto\nNODE_TAINTS=\n"
	for _, c := range []struct{ name, machine, more, page string }{ // without a name: the page's sentence is a note
		{"Bottlerocket", "eks-bottlerocket", "", "eks"},
		{"EKS Auto Mode", "eks-bottlerocket", env, "eks"},
		{"GKE Autopilot", "gke-cos", "-- proc/sys/kernel/hostname --\ngk3-online-boutique-pool-1-b46cb125-t4tv\n", "gke"},
		{"Talos", "talos", "", ""},
		{"", "aks-ubuntu2204", "", aks.Automatic},
		{"", "gke-cos", "", gke.OnCOS},
		{"", "operator-26.3", "", ""},
		{"", "operator-26.7", "", ""},
	} {
		t.Run(c.machine+" "+c.name, func(t *testing.T) {
			archive := string(recorded(t)[c.machine]) + c.more + "-- etc/gpuadm/node.toml --\nformat = 1\n[runtime]\n"
			n := must.Get(simhost.New([]byte(archive)))(t)
			touched := n.Touches()
			code, out := onHost(t, n, "plan", "-v")
			if c.name == "" {
				if code != 0 || strings.Contains(out, "cannot prepare") || !strings.Contains(strings.Join(strings.Fields(out), " "), c.page) {
					t.Errorf("exit code %d\n%s", code, out)
				}
				return
			}
			var why, use string
			for _, s := range cloud.AllSealed() {
				if s.Name == c.name {
					why, use = s.Why, s.Use
				}
			}
			for verb, wide := range map[string]string{"plan": out, "apply": applied(t, n)} {
				text := strings.Join(strings.Fields(wide), " ")
				for _, word := range []string{"cannot prepare a node of " + c.name + ": " + why, "use " + use} {
					if !strings.Contains(text, word) {
						t.Errorf("%s does not say %q:\n%s", verb, word, wide)
					}
				}
			}
			if code != exitCannot || n.Touches() != touched {
				t.Errorf("exit code %d, %d touches", code, n.Touches()-touched)
			}
			if c.page != "" {
				onPage(t, c.page, c.name+" | gpuadm cannot prepare these nodes: "+why+". Use "+use)
			}
		})
	}
	onPage(t, "aks", "AKS Automatic | "+aks.Automatic)
	onPage(t, "gke", "Container-Optimized OS | "+gke.OnCOS)
}

func applied(t *testing.T, n *simhost.Node) string {
	t.Helper()
	code, out := onHost(t, n, "apply", "--unattended")
	if code != exitCannot {
		t.Errorf("apply's exit code is %d", code)
	}
	return out
}

func onPage(t *testing.T, page, text string) {
	t.Helper()
	if b, err := os.ReadFile("../../docs/" + page + ".md"); err != nil || !strings.Contains(string(b), text) {
		t.Errorf("docs/%s.md does not say %q: %v", page, text, err)
	}
}

// owned is a file of -f.
type owned struct {
	mode     fs.FileMode
	uid, gid uint32
}

func (o owned) Name() string       { return "node.toml" }
func (o owned) Size() int64        { return 0 }
func (o owned) Mode() fs.FileMode  { return o.mode }
func (o owned) ModTime() time.Time { return time.Time{} }
func (o owned) IsDir() bool        { return false }
func (o owned) Sys() any           { return &syscall.Stat_t{Uid: o.uid, Gid: o.gid} }

// TestWriters: an operator's own file is used without a word, also with sudo and a umask of 002.
func TestWriters(t *testing.T) {
	const operator, other = 1000, 1001
	for _, c := range []struct {
		file          owned
		caller, login int
		want          string
	}{
		{owned{0o644, 0, 0}, 0, -1, ""},
		{owned{0o664, operator, operator}, 0, operator, ""},
		{owned{0o664, operator, operator}, operator, operator, ""},
		{owned{0o600, 0, 0}, operator, operator, ""},
		{owned{0o644, other, other}, 0, operator, "user 1001 owns"},
		{owned{0o644, operator, operator}, 0, -1, "user 1000 owns"},
		{owned{0o664, operator, 50}, 0, operator, "group 50 can write to"},
		{owned{0o666, operator, operator}, operator, operator, "every user can write to"},
		{owned{0o646, 0, 0}, 0, operator, "every user can write to"},
	} {
		if got := writers(c.file, c.caller, func() int { return c.login }); got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
}
