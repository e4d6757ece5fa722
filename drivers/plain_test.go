// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"regexp"
	"testing"
)

// FuzzPlain compares code that reads names with the regular expressions that it says the same as.
func FuzzPlain(f *testing.F) {
	compiler := regexp.MustCompile(`^(?:[a-z0-9_]+-linux-gnu-)?(gcc-[0-9]+) \((?:Debian|Ubuntu) `)
	module := regexp.MustCompile(`^[a-z0-9_-]+$`)
	for _, text := range []string{
		"", "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0", "x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0) 13.3.0", "gcc-12 (Debian", "gcc-12 (Fedora ", "gcc- (Debian ",
		"-linux-gnu-gcc-12 (Debian ", "gcc-12-linux-gnu-gcc-1 (Ubuntu ", "X-linux-gnu-gcc-1 (Ubuntu ", "a-linux-gnu-b-linux-gnu-gcc-1 (Debian ", "gcc-1 (x (Debian ",
		"nvidia-uvm", "nvidia_uvm\n", "Nvidia",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want := ""
		if m := compiler.FindStringSubmatch(text); m != nil {
			want = m[1]
		}
		if is := compilerName(text); is != want {
			t.Errorf("compiler in %q: %q, not %q", text, is, want)
		}
		if _, err := modulesLoad([]string{text}); (err == nil) != module.MatchString(text) {
			t.Errorf("module %q: %v", text, err)
		}
	})
}
