// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
)

// contents reads a file; nil if it cannot be read.
func contents(v host.View, name string) []byte {
	b, err := v.ReadFile(name)
	if err != nil {
		return nil
	}
	return b
}

// mayContain reads a file that need not exist: nil where it does not.
func mayContain(v host.View, name string) ([]byte, error) {
	data, err := v.ReadFile(name)
	if host.NotExist(err) {
		return nil, nil
	}
	return data, err
}

// oneLine reads a file of the kernel's, without spaces at both ends; "" if it cannot be read.
func oneLine(v host.View, name string) string {
	return strings.TrimSpace(string(contents(v, name)))
}

// moduleLine is oneLine of a file of the loaded module, which an older or a broken driver may not
// have. What cannot be read is not known.
func moduleLine(v host.View, name string) (string, error) {
	data, err := v.ReadFile(name)
	if host.NotExist(err) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

// runningKernel is the version of the running kernel: "6.8.0-88-generic".
func runningKernel(v host.View) string { return oneLine(v, "/proc/sys/kernel/osrelease") }
