// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os/exec"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// A shell reads a quoted word as the word itself.
func TestShellWord(t *testing.T) {
	for _, word := range []string{"", "plan", "label example.com/rack", "it's", "$(id)", "a;b", "*.toml", "~", "-f", "a=b,c", "line\nline", "ü"} {
		out, err := exec.Command("sh", "-c", "printf %s "+ShellWord(word)).Output()
		check.That(t, err == nil && string(out) == word, "%q is read as %q: %v", word, out, err)
	}

	got := ShellWord("/etc/gpuadm/node.toml")
	check.That(t, got == "/etc/gpuadm/node.toml", "%s is quoted without need", got)
}
