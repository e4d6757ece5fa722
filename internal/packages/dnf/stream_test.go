// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/alloc"
	"github.com/gpuadm/gpuadm/test/must"
)

func TestStream(t *testing.T) {
	h := must.Get(host.Open(t.TempDir()))(t)
	for _, dir := range []string{"/etc", "/etc/dnf", moduleFolder} {
		must.OK(t, h.Mkdir(dir, host.Attr{Mode: 0o755}))
	}
	w := Stream("580-open", "")
	for _, to := range []converge.State{"580-open", "590-open", ""} {
		must.OK(t, w.Make(t.Context(), h, to))
		if is, err := w.Look(t.Context(), h); err != nil || is != to {
			t.Errorf("made %q, found %q, %v", to, is, err)
		}
	}
	if _, err := w.To("590-open"); err == nil || !strings.Contains(wordsOf(err), "dnf module reset nvidia-driver") {
		t.Errorf("another stream: %v", err)
	}
	if to, err := w.To(""); to != "580-open" || err != nil {
		t.Errorf("none: %q, %v", to, err)
	}
}

// FuzzModuleStream gives a file of dnf's about a module, and one about repositories.
func FuzzModuleStream(f *testing.F) {
	f.Add("[nvidia-driver]\nname=nvidia-driver\nstream=580-open\nprofiles=\nstate=enabled\n")
	f.Add("[a]\nenabled=0\nbaseurl=x\n[b]\nbaseurl=y\n")
	f.Add(strings.Repeat("[a]\n=\n", manyTimes))
	f.Add(strings.Repeat("a=", manyTimes))
	f.Fuzz(func(t *testing.T, text string) {
		alloc.Most(t, 400, len(text), func() {
			is, err := readStream(simulated(t, stream(driverModule).file(), text), driverModule)
			if err != nil || strings.ContainsAny(is, "\n") || is != "" && !strings.Contains(text, "enabled") {
				t.Errorf("%q, %v", is, err)
			}
			for _, r := range parseRepos("f", []byte(text)) {
				if strings.ContainsAny(r.id+r.url()+r.values["gpgkey"], "\n") {
					t.Errorf("%+v", r)
				}
			}
		})
	})
}
