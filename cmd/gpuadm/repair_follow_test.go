// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// Each verb that changes the machine hears what the machine's programs print, so that it can show
// how far they are; with -o json it prints events alone.
func TestVerbsHearPrograms(t *testing.T) {
	archive := must.Get(os.ReadFile(filepath.Join("..", "..", "test", "hosts", "debian12-containerd16.txtar")))(t)
	for _, tt := range []struct {
		args  string
		hears bool
	}{
		{"apply --dry-run", true},
		{"undo --dry-run", true},
		{"repair PKG-004 --dry-run", true},
		{"repair PKG-004 --dry-run -o json", false},
	} {
		n := must.Get(simhost.New(archive))(t)
		must.OK(t, n.Mkdir(specHome, host.Attr{Mode: 0o755}))
		must.OK(t, n.WriteFile(specHome+"/node.toml", []byte("format = 1\n"), host.Attr{Mode: 0o644}))

		hears := false
		open := func(_ string, follow commands.Follow) (host.Host, error) {
			hears = hears || follow != nil
			return n, nil
		}

		e := env{
			stdin:  strings.NewReader(""),
			stdout: io.Discard,
			stderr: io.Discard,
			getenv: os.Getenv,
			root:   true,
			open:   open,
			stat:   os.Stat,
		}
		run(t.Context(), e, strings.Fields(tt.args))
		if hears != tt.hears {
			t.Errorf("%s hears the programs: %v, want %v", tt.args, hears, tt.hears)
		}
	}
}
