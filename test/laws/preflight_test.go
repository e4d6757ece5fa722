// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package laws

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/doctor"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/stages"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestOneAdvice: of a GPU that fell off the bus preflight, the kernel's log and doctor say the same, and what a stop of the instance loses.
func TestOneAdvice(t *testing.T) {
	advice := faults.Of("GPU-001").Fix
	check.That(t, strings.Contains(advice, "power the machine off and on") && strings.Contains(advice, "loses what is on its local disks"), "%v", advice)
	for _, spec := range []string{"[driver]\ngpu_count = 8\n", "[driver]\n"} {
		all := stages.Sequence()
		preflight := all[slices.IndexFunc(all, func(st converge.Stage) bool { return st.Name == "preflight" })]
		var f facts.Facts
		f.Live = true
		wants, err := preflight.Wants(parse(t, spec), f)
		must.That(t, err == nil && len(wants) == 1, "%v %v", wants, err)
		_, err = wants[0].To("a GPU is missing")
		tr := (*trouble.Error)(nil)
		check.That(t, errors.As(err, &tr) && slices.Contains(tr.Try, advice), "preflight: %v", err)
	}
	for _, c := range doctor.Checks() {
		check.That(t, c.Code != "GPU-001" || c.Fix == advice, "doctor: %s", c.Fix)
	}
	got := faults.Meanings([]string{"NVRM: GPU 0000:17:00.0: GPU has fallen off the bus."})
	check.That(t, len(got) == 1 && strings.HasSuffix(got[0], advice), "the kernel's log: %q", got)
	for _, line := range []string{"NVRM: Xid (PCI:0000:17:00): 79, pid=1", "NVRM: Xid (PCI:0000:17:00): 143, pid=1"} {
		got := strings.Join(faults.Meanings([]string{line}), "\n")
		check.That(t, strings.Contains(got, "power the machine off and on") && strings.Contains(got, "loses what is on its local disks"), "%s: %s", line, got)
	}
}

// TestPreflightWaitsForAKS: no stage touches a machine of AKS's before its scripts have ended, which may remove a driver by path.
func TestPreflightWaitsForAKS(t *testing.T) {
	const spec = "[driver]\n[runtime]\n"
	for _, gone := range []string{"", "-/opt/azure/containers/provision.complete"} {
		files := map[string]string{gone: ""}
		delete(files, "")
		n := changed(t, "aks-ubuntu2204", files)
		e := engine(t, spec)
		e.Stages = slices.DeleteFunc(e.Stages, func(st converge.Stage) bool { return st.Name != "preflight" })
		if _, err := e.Apply(t.Context(), n); trouble.Passes(err) != (gone != "") || gone == "" && err != nil {
			t.Errorf("%q: %v", gone, err)
		}
	}
}

// TestPreflightGKEPlugin: Google's device plugin finds no driver but Google's, so where gpuadm installs one the pool must keep that
// plugin off, and gpuadm says so before anything is installed.
func TestPreflightGKEPlugin(t *testing.T) {
	for _, c := range []struct{ name, machine, options, spec, want string }{
		{"labelled", "gke-ubuntu", "", "[driver]\nversion = \"580\"\n", ""},
		{"not labelled", "gke-ubuntu", "--node-labels=a=b", "[driver]\nversion = \"580\"\n", "cannot install a driver on this node of GKE"},
		{"labelled otherwise", "gke-ubuntu", "--node-labels=gke-no-default-nvidia-gpu-device-plugin=false", "[driver]\nversion = \"580\"\n", "cannot install a driver on this node of GKE"},
		{"no driver is asked for", "gke-ubuntu", "--node-labels=a=b", "[driver]\n[runtime]\n", ""},
		{"the driver is another's", "gke-ubuntu", "--node-labels=a=b", "[driver]\nversion = \"580\"\nowner = \"other\"\n", ""},
	} {
		files := map[string]string{}
		if c.options != "" {
			files["/etc/default/kubelet"] = "KUBELET_OPTS=\"--kubeconfig=/var/lib/kubelet/kubeconfig --config /home/kubernetes/kubelet-config.yaml " + c.options + "\"\n"
		}
		e := engine(t, c.spec)
		e.Stages = slices.DeleteFunc(e.Stages, func(st converge.Stage) bool { return st.Name != "preflight" })
		var cannot []string
		for _, ch := range plan(t, changed(t, c.machine, files), e).Changes {
			if ch.Cannot != "" {
				cannot = append(cannot, ch.Cannot+"\n"+strings.Join(ch.Try, "\n"))
			}
		}
		got := strings.Join(cannot, "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.name, got)
		}
		if c.want != "" && (!strings.Contains(got, "gke-no-default-nvidia-gpu-device-plugin=true") || !strings.Contains(got, "exactly one device plugin")) {
			t.Errorf("%s: no advice: %s", c.name, got)
		}
	}
}
