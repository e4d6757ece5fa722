// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os/exec"
	"testing"
)

// A shell reads a quoted word as the word itself.
func TestShellWord(t *testing.T) {
	for _, word := range []string{"", "plan", "label example.com/rack", "it's", "$(id)", "a;b", "*.toml", "~", "-f", "a=b,c", "line\nline", "ü"} {
		out, err := exec.Command("sh", "-c", "printf %s "+ShellWord(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q is read as %q: %v", word, out, err)
		}
	}
	if got := ShellWord("/etc/gpuadm/node.toml"); got != "/etc/gpuadm/node.toml" {
		t.Errorf("%s is quoted without need", got)
	}
}
