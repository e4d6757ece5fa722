// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// The kernel says all of a function in one file: pci_uevent in drivers/pci/pci-driver.c, dev_uevent in drivers/base/core.c. A recorded
// machine without it has the attributes (Documentation/ABI/testing/sysfs-bus-pci). Both say the same.
func TestPCIReadOnce(t *testing.T) {
	const at, other = "/sys/bus/pci/devices/0000:17:00.0/", "/sys/bus/pci/devices/0000:00:01.0/"
	h100 := PCI{Address: "0000:17:00.0", Vendor: "10de", Device: "2330", Class: "030200", Subsystem: "10de:16c1", Model: "H100 80GB"}
	bound := h100
	bound.Driver = "nvidia"
	for _, c := range []struct {
		name  string
		files files
		want  PCI
		reads int
	}{
		{"uevent", files{
			at + "uevent":    "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1\nPCI_SLOT_NAME=0000:17:00.0\nMODALIAS=pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n",
			other + "uevent": "DRIVER=virtio-pci\nPCI_CLASS=FFFF00\nPCI_ID=1AF4:1045\nPCI_SUBSYS_ID=1AF4:1045\nPCI_SLOT_NAME=0000:00:01.0\nMODALIAS=pci:v00001AF4d00001045sv00001AF4sd00001045bcFFscFFi00\n",
		}, bound, 2},
		{"attributes", files{
			at + "vendor": "0x10de\n", at + "device": "0x2330\n", at + "class": "0x030200\n", at + "subsystem_vendor": "0x10de\n",
			at + "subsystem_device": "0x16c1\n", other + "vendor": "0x1af4\n",
		}, h100, 8},
	} {
		var read []string
		var cache Cache
		v := &liveFiles{c.files, &read}
		found, err := cache.GPUs(v)
		if d := cmp.Diff([]PCI{c.want}, found); d != "" || err != nil || len(read) != c.reads {
			t.Errorf("%s: %s %v, read by %q", c.name, d, err, read)
		}
		for _, again := range []int{c.reads, 2 * c.reads} { // the first gathering takes what was found just before
			if f, err := cache.Gather(t.Context(), v, Needs{}); err != nil || len(f.GPUs) != 1 || len(read) != again {
				t.Errorf("%s: %v %v, %d files were read, not %d", c.name, f.GPUs, err, len(read), again)
			}
		}
	}
}
