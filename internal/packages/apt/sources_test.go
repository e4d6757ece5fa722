// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/alloc"
)

func TestSources(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, text string
		want       []string // names of lists
		keys       []string
	}{
		{
			"cuda.list", "# x\ndeb [signed-by=/usr/share/keyrings/cuda.gpg arch=amd64] https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/ /\n",
			[]string{"developer.download.nvidia.com_compute_cuda_repos_ubuntu2204_x86%5f64_"},
			[]string{"/usr/share/keyrings/cuda.gpg"},
		},
		{"toolkit.list", "deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n", []string{"nvidia.github.io_libnvidia-container_stable_deb_amd64_"}, nil},
		{
			"debian.sources", "Types: deb\nURIs: http://debian.example/debian\nSuites: bookworm\n bookworm-updates\nComponents: main\nSigned-By: /a.gpg\n\nEnabled: no\nTypes: deb\nURIs: http://x\nSuites: y\n",
			[]string{"debian.example_debian_dists_bookworm_", "debian.example_debian_dists_bookworm-updates_"},
			[]string{"/a.gpg"},
		},
		{"file.list", "deb file:/srv/repo stable main\n", []string{"_srv_repo_dists_stable_"}, nil},
		{"user.list", "deb http://me:secret@host:8077/r ./\n", []string{"host:8077_r_._"}, nil},
	} {
		var got []string
		for _, s := range parseSources(c.file, []byte(c.text), amd64) {
			got = append(got, s.list())
			if !slices.Equal(s.signedBy, c.keys) {
				t.Errorf("%s: keys %v", c.file, s.signedBy)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.file, got, c.want)
		}
	}
}

func FuzzSources(f *testing.F) {
	f.Add("Types: deb\nURIs: x y\nSuites: /\n", true)
	f.Add("deb [signed-by=/a] http://x y\n", false)
	f.Add("Types:"+strings.Repeat(" deb", 300)+"\nURIs:"+strings.Repeat(" x", 300)+"\nSuites:"+strings.Repeat(" y", 300)+"\nComponents: z\n", true)
	f.Add("URIs:\n"+strings.Repeat(" x\n", many), true)
	f.Fuzz(func(t *testing.T, text string, deb822 bool) {
		file := "a.list"
		if deb822 {
			file = "a.sources"
		}
		var all []source
		alloc.Most(t, 400, len(text), func() { all = parseSources(file, []byte(text), amd64) })
		for _, s := range all {
			if strings.ContainsAny(s.list(), "/ \n") {
				t.Errorf("%q", s.list())
			}
		}
	})
}

func amd64() string { return "amd64" }
