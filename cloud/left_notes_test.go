// SPDX-License-Identifier: Apache-2.0

package cloud

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// The notes tell about a platform's scripts only where they join the machine, and not with another
// method in [join].
func TestNotesOfOtherMethods(t *testing.T) {
	for _, tt := range []struct {
		method, managed string
		notes           bool
	}{
		{"auto", "aks", true},
		{"aks", "aks", true},
		{"aks", "aks-flex", true},
		{"auto", "oke", true},
		{"none", "aks", false},
		{"none", "oke", false},
		{"aks", "oke", false},
		{"auto", "eks-ubuntu", true},
		{"eks", "eks-ubuntu", true},
	} {
		s := spec.Defaults()
		s.Sections = []string{"join"}
		s.Join.Method = tt.method
		var f facts.Facts
		f.Cloud.Managed = tt.managed
		if notes := joinNotes(nil, s, f); (len(notes) > 0) != tt.notes {
			t.Errorf("method %s on %s: notes %q", tt.method, tt.managed, notes)
		}
	}
}

// On Canonical's image for EKS bootstrap.sh starts the kubelet of a snap: gpuadm sets up none.
func TestNoSecondKubeletOnUbuntu(t *testing.T) {
	for _, method := range []string{"auto", "eks"} {
		s := spec.Defaults()
		s.Sections = []string{"join"}
		s.Join.Method = method
		var f facts.Facts
		f.Live = true
		f.Cloud.Name = "aws"
		f.Cloud.Managed = "eks-ubuntu"

		wants, err := joinWants(nil, s, f)
		if err != nil || len(wants) > 0 {
			t.Errorf("method %s: %d wants, %v", method, len(wants), err)
		}
	}
}
