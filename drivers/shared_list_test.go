// SPDX-License-Identifier: Apache-2.0

package facts_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/drivertest"
	"github.com/gpuadm/gpuadm/test/must"
)

func gzipped(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.Bytes()
}

// TestShared: the list of a mirror is compared with the symbols of the kernels that are there, in
// whichever of its places a kernel has them.
func TestShared(t *testing.T) {
	const k, list = "6.1.0-28-amd64", "/srv/mirror/gpuadm-mirror.json"
	symbol := func(crc string) string { return crc + "\tprintk\tvmlinux\tEXPORT_SYMBOL\t\n" }
	const differ = "they were built for another build of the kernel: the CRCs of its symbols"
	for _, x := range []struct{ name, files, says string }{
		{"no symbols", "", ""},
		{"the headers' fit", "-- lib/modules/" + k + "/build/Module.symvers --\n" + symbol("0x0000000a"), ""},
		{"the headers differ", "-- lib/modules/" + k + "/build/Module.symvers --\n" + symbol("0x0000000b"), differ},
		{"RHEL's differ", drivertest.File("lib/modules/"+k+"/symvers.gz", gzipped(symbol("0x0000000b"))), differ},
		{"what is there already is not compared", "-- lib/modules/" + k + "/build/Module.symvers --\n" + symbol("0x0000000b") +
			drivertest.ModuleFile("lib/modules/"+k+"/updates/gpuadm/nvidia.ko", "580.95.05", "Dual MIT/GPL", k), ""},
	} {
		dep := "updates/gpuadm/nvidia.ko:\n"
		if x.name != "what is there already is not compared" {
			dep = ""
		}
		n := drivertest.Node(t, "-- proc/sys/kernel/osrelease --\n"+k+"\n-- lib/modules/"+k+"/modules.dep --\n"+dep+x.files+"-- "+list[1:]+" --\n"+
			fmt.Sprintf(`{"modules": {"a.deb": {"kernel": %q, "version": "580.95.05", "headers": "%x"}, "b.deb": {"kernel": "another"}}}`+"\n", k, sha256.Sum256([]byte(symbol("0x0000000a")))))
		f := must.Get(facts.Gather(t.Context(), n, facts.Needs{Modules: true, Shared: list}))(t)
		must.That(t, len(f.Shared) == 1, "%s: %+v", x.name, f.Shared)
		check.That(t, strings.HasPrefix(f.Shared[0].Problem, x.says) && (f.Shared[0].Problem == "") == (x.says == ""), "%s: %s", x.name, f.Shared[0].Problem)
	}
	const failed = `{"kernel": "` + k + `", "version": "580.95.05", "failure": "no follow_pfn"}`
	n := drivertest.Node(t, `-- proc/sys/kernel/osrelease --
`+k+`
-- lib/modules/`+k+`/modules.dep --
-- `+list[1:]+` --
{"failed": [`+failed+`, {"kernel": "another"}]}
`)
	f := must.Get(facts.Gather(t.Context(), n, facts.Needs{Modules: true, Shared: list}))(t)
	must.That(t, len(f.Shared) == 1 && f.Shared[0].Failure == "no follow_pfn", "a failure: %+v", f.Shared)

	n = drivertest.Node(t, "-- proc/sys/kernel/osrelease --\n"+k+"\n")
	f = must.Get(facts.Gather(t.Context(), n, facts.Needs{Modules: true, Shared: list}))(t)
	check.That(t, f.Shared == nil, "without a list: %+v", f.Shared)
}
