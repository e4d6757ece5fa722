// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"reflect"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/alloc"
)

// Of apt 2.6.2 on Debian 12.
const policy = `bash:
  Installed: 5.2.15-2+b8
  Candidate: 5.2.15-2+b13
  Version table:
     5.2.15-2+b13 500
        500 http://debian.example/debian bookworm/main amd64 Packages
 *** 5.2.15-2+b8 100
        100 /var/lib/dpkg/status
nvidia-driver:
  Installed: (none)
  Candidate: 580.95.05-1
  Version table:
     580.95.05-1 1001
        500 http://127.0.0.1:33977  Packages
     535.247.01-1~deb12u1 500 (phased 20%)
        500 http://debian.example/debian bookworm/non-free amd64 Packages
        500 http://debian.example/debian-security bookworm-security/non-free amd64 Packages
`

func TestPolicy(t *testing.T) {
	t.Parallel()
	want := map[string][]packages.Offer{
		"bash": {{Version: "5.2.15-2+b13", Priority: 500, From: []string{"http://debian.example/debian bookworm/main amd64"}}},
		"nvidia-driver": {
			{Version: "580.95.05-1", Priority: 1001, From: []string{"http://127.0.0.1:33977"}},
			{Version: "535.247.01-1~deb12u1", Priority: 500, From: []string{"http://debian.example/debian bookworm/non-free amd64", "http://debian.example/debian-security bookworm-security/non-free amd64"}},
		},
	}
	if got := parsePolicy(policy); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add(policy)
	f.Add("a:\n *** \n     \n        x")
	f.Add(strings.Repeat("a:\n *** 1 1\n  1 x\n", many))
	f.Fuzz(func(t *testing.T, out string) {
		alloc.Most(t, 400, len(out), func() {
			for name, offers := range parsePolicy(out) {
				for _, o := range offers {
					if o.Version == "" || len(o.From) == 0 {
						t.Errorf("%q: %+v", name, o)
					}
				}
			}
		})
	})
}

// many is how often what is hostile once is there in a seed: what grows with the square of the input shows.
const many = 20_000
