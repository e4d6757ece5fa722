// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// At a terminal undo without --to names the run and its count, and asks. Without a terminal, or
// with --yes or --to, it does not ask.
func TestUndoAsks(t *testing.T) {
	archive := must.Get(os.ReadFile(filepath.Join("..", "..", "test", "hosts", "debian12-containerd16.txtar")))(t)
	pty := must.Get(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))(t)
	defer pty.Close()
	must.OK(t, unix.IoctlSetPointerInt(int(pty.Fd()), unix.TIOCSPTLCK, 0))
	number := must.Get(unix.IoctlGetInt(int(pty.Fd()), unix.TIOCGPTN))(t)
	terminal := must.Get(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	defer terminal.Close()
	for _, tt := range []struct {
		args, types string
		code        int
		asks, undo  bool
	}{
		{"undo", "n\n", exitCannot, true, false},
		{"undo", "\n", exitCannot, true, false},
		{"undo", "y\n", 0, true, true},
		{"undo --yes", "", 0, false, true},
		{"undo --to all", "", 0, false, true},
	} {
		n := must.Get(simhost.New(archive))(t)
		must.OK(t, n.Mkdir(specHome, host.Attr{Mode: 0o755}))
		must.OK(t, n.WriteFile(specHome+"/node.toml", []byte("format = 1\n[runtime]\n"), host.Attr{Mode: 0o644}))
		first := tree(n)
		var out strings.Builder
		e := env{
			stdin:  terminal,
			stdout: &out,
			stderr: terminal,
			getenv: os.Getenv,
			root:   true,
			open:   func(string, commands.Follow) (host.Host, error) { return n, nil },
		}
		if code := run(t.Context(), e, []string{"apply", "-q"}); code != 0 {
			t.Fatal(code, out.String())
		}
		must.Get(pty.WriteString(tt.types))(t)
		code := run(t.Context(), e, strings.Fields(tt.args))
		must.Get(fmt.Fprintln(terminal, "end"))(t)
		shown := ""
		for buffer := make([]byte, 4096); !strings.Contains(shown, "end\r\n"); {
			got := must.Get(pty.Read(buffer))(t)
			shown += string(buffer[:got])
		}

		if asks := strings.Contains(shown, "Undo 2 changes of run 20") && strings.Contains(shown, "? [y/N] "); code != tt.code || asks != tt.asks || (tree(n) == first) != tt.undo {
			t.Errorf("%s, typed %q: exit code %d, undone %v, shown:\n%s", tt.args, tt.types, code, tree(n) == first, shown)
		}
	}
}

// TestUndoHintKeepsFlags: what gpuadm names to type in place of an undo that cannot ask does the
// same undo: it leaves what the operator leaves.
func TestUndoHintKeepsFlags(t *testing.T) {
	n := appliedNode(t)
	const flags = "undo --leave /etc/containerd/conf.d/99-nvidia.toml --allow restart-runtime"
	said := ends(t, n, exitUsage, strings.Fields(flags)...)
	check.Has(t, said, flags+" --yes\n", "the hint")
	check.Has(t, said, flags+" --dry-run ", "the hint")
}
