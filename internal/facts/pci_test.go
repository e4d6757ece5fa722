// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/test/check"
)

// liveFiles is a running machine with these files, which counts what is read of a GPU.
type liveFiles struct {
	files
	read *[]string
}

func (*liveFiles) Live() bool { return true }

func (v *liveFiles) ReadFile(name string) ([]byte, error) {
	if strings.HasPrefix(name, "/sys/bus/pci/") {
		*v.read = append(*v.read, name)
	}
	return v.files.ReadFile(name)
}

// TestPCIReadOnce: one file of each function is read, and the first gathering takes what was found
// just before.
func TestPCIReadOnce(t *testing.T) {
	const at, other = "/sys/bus/pci/devices/0000:17:00.0/", "/sys/bus/pci/devices/0000:00:01.0/"
	want := PCI{
		Address:   "0000:17:00.0",
		Vendor:    "10de",
		Device:    "2330",
		Class:     "030200",
		Subsystem: "10de:16c1",
		Driver:    "nvidia",
		Model:     "H100 80GB",
	}
	var read []string
	var cache Cache
	v := &liveFiles{files{
		at + "uevent":    "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1\nPCI_SLOT_NAME=0000:17:00.0\nMODALIAS=pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n",
		other + "uevent": "DRIVER=virtio-pci\nPCI_CLASS=FFFF00\nPCI_ID=1AF4:1045\nPCI_SUBSYS_ID=1AF4:1045\nPCI_SLOT_NAME=0000:00:01.0\nMODALIAS=pci:v00001AF4d00001045sv00001AF4sd00001045bcFFscFFi00\n",
		"/sys/bus/pci/devices/0000:00:02.0/vendor": "0x10de\n", // it has gone, but for this
	}, &read}
	found, err := cache.GPUs(v)
	d := cmp.Diff([]PCI{want}, found)
	check.That(t, d == "" && err == nil, "%s %v", d, err)
	reads := len(read)
	check.That(t, reads == 3, "read %q", read)
	for _, again := range []int{reads, 2 * reads} {
		f, err := cache.Gather(t.Context(), v, Needs{})
		check.That(t, err == nil && len(f.GPUs) == 1 && len(read) == again, "%v %v, %d files were read, not %d", f.GPUs, err, len(read), again)
	}
}
