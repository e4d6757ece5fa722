// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
)

// TestManyKubeletArguments: a file of arguments with twice the lines takes about twice the memory to
// read. A reader that went over all lines for each of them took 8 s for 1,000.
func TestManyKubeletArguments(t *testing.T) {
	const unit = "[Service]\nEnvironmentFile=-/etc/default/kubelet\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS\n"
	cost := func(lines int) uint64 {
		var text strings.Builder
		for i := range lines {
			fmt.Fprintf(&text, "KUBELET_EXTRA_ARGS=--node-labels=example.com/number-%d=%[1]d\n", i)
		}
		v := files{
			"/usr/bin/kubelet":                        "x",
			"/usr/lib/systemd/system/kubelet.service": unit,
			"/etc/default/kubelet":                    text.String(),
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		gather(t, v)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}

	none := cost(0)
	once := cost(2000) - none
	twice := cost(4000) - none
	check.That(t, twice <= 3*once, "2,000 lines allocate %d bytes, and 4,000 allocate %d", once, twice)
}
