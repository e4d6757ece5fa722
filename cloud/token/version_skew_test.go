// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"context"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/joins"
	"github.com/gpuadm/gpuadm/test/sim/kubesim"
)

// TestVersionsFit: the version skew policy of Kubernetes.
func TestVersionsFit(t *testing.T) {
	for _, c := range []struct{ kubelet, server, says string }{
		{"1.34.4", "v1.34.0", ""},
		{"1.34.9", "v1.34.1", ""}, // patch releases do not count
		{"1.31.0", "v1.34.4", ""},
		{"1.30.9", "v1.34.4", "kubelet 1.30.9 is more than 3 minor versions older"},
		{"1.35.0", "v1.34.4", "kubelet 1.35.0 is newer than the API server, which is v1.34.4"},
		{"1.35.0-rc.1", "v1.34.4-eks-1a2b3c", "newer"},
		{"1.31.4", "v1.34.4-gke.1200", ""},
		{"1.24.17", "v1.27.1", "more than 2 minor versions older"},
		{"1.25.0", "v1.28.1", ""},
		{"", "v1.34.4", ""},
		{"1.99.0", "", ""},
		{"junk", "junk", ""},
	} {
		err := versionsFit(c.kubelet, c.server)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(joins.Because(err), "install kubelet 1.")) {
			t.Errorf("%+v: %v %s", c, err, joins.Because(err))
		}
	}
}

// TestPreflightOfVersions: the join looks before anything is asked for, by what it asks anyway; a server that tells no version is
// taken as it is.
func TestPreflightOfVersions(t *testing.T) {
	for name, c := range map[string]struct {
		kubelet string
		hides   bool
		refused bool
	}{
		"newer":     {"1.99.0", false, true},
		"older":     {"1.20.0", false, true},
		"not told":  {"1.99.0", true, false},
		"not known": {"", false, false},
	} {
		j := startJoin(t, joins.Machine, "")
		if c.hides {
			j.Fail(kubesim.Fault{On: "GET /version", Times: -1, Status: 403})
		}
		join := j.joiner(t)
		join.kubelet = c.kubelet
		j.Requests()
		err := join.try(context.Background(), j.n.View())
		if (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), "kubelet "+c.kubelet) {
			t.Errorf("%s: %v", name, err)
		}
		asked := 0
		for _, r := range j.Requests() {
			if r == "GET /version" {
				asked++
			}
		}
		if asked != 1 || len(j.Asked()) > 0 {
			t.Errorf("%s: asked for the version %d times, and for certificates %v", name, asked, j.Asked())
		}
	}
}
