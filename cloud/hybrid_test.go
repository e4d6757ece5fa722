// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpuadm/gpuadm/cloud/eks"
	"github.com/gpuadm/gpuadm/cloud/node"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestHybrid: a machine of one's own with nodeadm for hybrid nodes is looked at first, without credentials, and then handed over:
// what nodeadm is to be given and called with is said, and it is waited for.
func TestHybrid(t *testing.T) {
	for name, c := range map[string]struct {
		spec  string
		off   time.Duration // of AWS's clock
		want  []string
		waits bool
	}{
		"all is well":   {"region = \"us-west-2\"\n", 0, []string{"nodeadm to join this machine", eks.HybridInit}, true},
		"no region":     {"", 0, []string{"nodeadm to join this machine", eks.HybridInit}, true},
		"wrong clock":   {"region = \"us-west-2\"\n", -10 * time.Minute, []string{"clock is 10m0s ahead of AWS's", "chronyc makestep"}, true},
		"no way to AWS": {"region = \"us-west-9\"\n", 0, []string{"the name eks.us-west-9.amazonaws.com is not known", "[join] region", "[proxy] https"}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := joins.Recorded(t, "debian13-containerd17", map[string]string{"/opt/nodeadm/tracker": "x"})
			now := n.Now()
			n.Serve("eks.us-west-2.amazonaws.com", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				check.That(t, r.Header.Get("Authorization") == "" && r.Method == http.MethodGet, "%s: %s with %v", name, r.Method, r.Header)
				w.Header().Set("Date", now.Add(c.off).UTC().Format(http.TimeFormat))
				w.WriteHeader(http.StatusForbidden)
			}))
			e := cloudEngine(joins.Spec(t, "[join]\nmethod = \"auto\"\n"+c.spec+"[node]\ngpu_labels = false\nlabels = { \"example.com/team\" = \"a\" }\n"))
			e.Stages = append(e.Stages, Joined(new(node.Session)))
			_, err := e.Apply(t.Context(), n)
			must.That(t, err != nil && trouble.Passes(err) == c.waits, "%s: %v", name, err)
			for _, want := range c.want {
				all := err.Error() + joins.Because(err)
				check.That(t, strings.Contains(all, want), "%s: want %q in %s", name, want, all)
			}
			p := must.Get(e.Plan(t.Context(), n))(t)
			if notes := strings.Join(p.Notes, "\n"); !strings.Contains(notes, "nodeadm of EKS Hybrid Nodes joins this machine") || !strings.Contains(notes, "--node-labels=example.com/team=a") ||
				strings.Contains(notes, "with region in [join]") != (c.spec == "") {
				t.Errorf("%s: the plan notes %s", name, notes)
			}
		})
	}
}

// TestHybridJoined: once nodeadm has joined it nothing of AWS is asked.
func TestHybridJoined(t *testing.T) {
	n := joins.Recorded(t, "debian13-containerd17", map[string]string{"/opt/nodeadm/tracker": "x"})
	s := joins.Spec(t, "[join]\nmethod = \"auto\"\nregion = \"us-west-2\"\n")
	f, err := facts.Gather(t.Context(), n, Join(new(node.Session)).Needs(s))
	joins.Must(t, err)
	f.Kubelet.Joined = true
	wants, err := joinWants(new(node.Session), s, f)
	check.That(t, err == nil && len(wants) == 0, "%v %v", wants, err)
	f.Kubelet.Joined, f.Cgroup, f.Kubelet.Version = false, 1, "1.36.0"
	_, err = joinWants(new(node.Session), s, f)
	check.That(t, err != nil && strings.Contains(err.Error(), "cgroup v1"), "%v", err)
}
