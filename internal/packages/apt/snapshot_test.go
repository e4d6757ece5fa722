// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestReadingOutlivesSnapshot: another process changes dpkg's database between facts, which have read a part of it, and the first look. What
// the plan reads then is not taken for the new file's by the stages that follow.
func TestReadingOutlivesSnapshot(t *testing.T) {
	const text = "Package: a\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n\nPackage: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 9\n"
	n := must.Get(simhost.New([]byte("-- var/lib/dpkg/status --\n" + text + "-- etc/os-release --\nID=debian\n")))(t)
	r, plan := packages.NewReading(New()), host.Snapshot(n)
	must.Get(plan.ReadFile(packages.DpkgStatus))(t)
	must.OK(t, n.WriteFile(packages.DpkgStatus, []byte(strings.Replace(text, "Version: 1", "Version: 2.0", 1)), host.Attr{Mode: 0o644}))
	must.Get(r.Read(t.Context(), plan))(t)
	if after, err := r.Read(t.Context(), n); err != nil || after["a"].Version != "2.0" {
		t.Errorf("%+v, %v", after["a"], err)
	}
}
