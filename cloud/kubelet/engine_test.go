// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
)

// TestCgroupDriverOfCRIO: of CRI-O's files the last one counts.
func TestCgroupDriverOfCRIO(t *testing.T) {
	const cgroupfs = "[crio.runtime]\ncgroup_manager = \"cgroupfs\"\n"
	const systemd = "[crio.runtime]\ncgroup_manager = \"systemd\"\n"
	const other = "[crio.runtime]\nlog_level = \"info\"\n"
	for want, texts := range map[string][]string{
		"cgroupfs": {systemd, cgroupfs, other},
		"systemd":  {cgroupfs, systemd},
	} {
		e := facts.Engine{Name: "crio"}
		for _, text := range texts {
			e.Files = append(e.Files, facts.File{Data: []byte(text)})
		}
		check.Equal(t, cgroupDriver(e), want, "of %q", texts)
	}
}
