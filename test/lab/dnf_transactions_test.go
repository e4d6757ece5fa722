// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"testing"

	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
)

// dnfInstalled wants what a node needs in one version, locked there, whatever the names in its branch are, and nothing of another version.
func (d *dnfDriver) dnfInstalled(version string) {
	d.t.Helper()
	found := 0
	for name, is := range lab.Only(d.RpmState(), "*nvidia*") {
		switch is {
		case repos.RPMVersion(version) + " held", repos.RPMVersion(version) + " held auto", repos.RPMVersion(version) + " auto":
			found++
		default:
			d.t.Errorf("package %s is %q, want %s", name, is, repos.RPMVersion(version))
		}
	}
	if found == 0 {
		d.t.Errorf("no package of driver %s is there", version)
	}
	for _, file := range []string{
		"/usr/lib64/libnvidia-ml.so." + version, "/usr/lib64/libcuda.so." + version, "/usr/bin/nvidia-persistenced", "/usr/bin/nvidia-smi",
		"/usr/src/nvidia-" + version + "/dkms.conf",
	} {
		if r := d.Exec("test", "-e", file); r.Exit != 0 {
			d.t.Errorf("driver %s: %s is not there", version, file)
		}
	}
}

// TestLabDnfTransactions: from version to version and from stream to stream, each in one transaction of dnf, and back.
func TestLabDnfTransactions(t *testing.T) {
	t.Parallel()
	d := newDnfDriver(t)
	state, tree := d.RpmState(), d.TreeOutsideCaches()
	for _, version := range []string{"580.95.05", "580.178.04", "580.95.05", "595.71.05", "570.172.08", "610.43.02"} {
		d.spec(version)
		oneTransaction(t, d.Host, "apply", "sources", "packages")
		d.dnfInstalled(version)
	}
	d.Must("rm", "-rf", "/etc/gpuadm")
	d.gpuadm(0, nil, "undo", "--to", "all")
	d.Must("rm", "-rf", "/var/lib/gpuadm")
	d.same(state, tree)
}
