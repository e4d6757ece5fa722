// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/drivers/hardware"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/must"
)

const (
	sharedKernel = "6.1.0-28-amd64"
	mirrorList   = "/srv/mirror/gpuadm-mirror.json"
)

// exported is a kernel's list with one symbol.
func exported(crc string) string { return crc + "\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n" }

func gzipped(text string) []byte {
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, _ = writer.Write([]byte(text))
	_ = writer.Close()
	return packed.Bytes()
}

// listedModules gathers the facts of a machine with these files, and returns the shared modules that
// the driver's choice sees.
func listedModules(t *testing.T, files string) []hardware.SharedModules {
	const text = "format = 1\n[driver]\nversion = \"580.95.05\"\n"
	s := must.Get(spec.Parse(spec.File{Name: "node.toml", Data: []byte(text)}))(t)
	s.Driver.Repo.URL = "file:///srv/mirror"
	n := drivertest.Node(t, "-- proc/sys/kernel/osrelease --\n"+sharedKernel+"\n"+files)
	f := must.Get(facts.Gather(t.Context(), n, Needs(s)))(t)
	return sharedModules(hardware.MachineOf(f, ""), s.Driver, f)
}

// TestSharedOfOtherBuild: the modules in a mirror's list are compared with the symbols of the kernels
// that are there, in whichever of its places a kernel has them.
func TestSharedOfOtherBuild(t *testing.T) {
	const modules = "lib/modules/" + sharedKernel
	const differ = "they were built for another build of the kernel: the CRCs of its symbols"
	headers := func(crc string) string {
		return "-- " + modules + "/build/Module.symvers --\n" + exported(crc)
	}
	installed := "-- " + modules + "/modules.dep --\nupdates/gpuadm/nvidia.ko:\n" +
		drivertest.ModuleFile(modules+"/updates/gpuadm/nvidia.ko", "580.95.05", "Dual MIT/GPL", sharedKernel)
	none := "-- " + modules + "/modules.dep --\n"

	const wanted, other = "0x0000000a", "0x0000000b"
	digest := sha256.Sum256([]byte(exported(wanted)))
	list := fmt.Sprintf("-- %s --\n"+
		`{"modules": {"a.deb": {"kernel": %q, "version": "580.95.05", "headers": "%x"}, "b.deb": {"kernel": "another"}}}`+"\n",
		mirrorList[1:], sharedKernel, digest)

	for _, tt := range []struct{ name, files, problem string }{
		{"no list of symbols", none, ""},
		{"the headers fit", none + headers(wanted), ""},
		{"the headers differ", none + headers(other), differ},
		{"RHEL's list differs", none + drivertest.File(modules+"/symvers.gz", gzipped(exported(other))), differ},
		{"a kernel that has the modules is not compared", installed + headers(other), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found := listedModules(t, tt.files+list)

			must.That(t, len(found) == 1, "%+v: want those of one kernel", found)
			isRight := strings.HasPrefix(found[0].Problem, tt.problem) && (found[0].Problem == "") == (tt.problem == "")
			check.That(t, isRight, "%q, want %q", found[0].Problem, tt.problem)
		})
	}
}

// TestSharedThatFailed: the list names the kernels for which the modules did not build.
func TestSharedThatFailed(t *testing.T) {
	const failed = `{"failed": [{"kernel": "` + sharedKernel + `", "version": "580.95.05", "failure": "no follow_pfn"}, {"kernel": "another"}]}`
	found := listedModules(t, "-- lib/modules/"+sharedKernel+"/modules.dep --\n-- "+mirrorList[1:]+" --\n"+failed+"\n")

	must.That(t, len(found) == 1, "%+v: want those of one kernel", found)
	check.Equal(t, found[0].Failure, "no follow_pfn", "it says")
}

// TestSharedWithoutList: without a list nothing is known of shared modules; a list that cannot be
// parsed has none.
func TestSharedWithoutList(t *testing.T) {
	found := listedModules(t, "")
	check.That(t, found == nil, "without a list: %+v", found)

	found = listedModules(t, "-- "+mirrorList[1:]+" --\nno JSON\n")
	check.That(t, found != nil && len(found) == 0, "of a torn list: %+v", found)
}
