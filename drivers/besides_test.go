// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package drivers

import (
	"strings"
	"testing"
)

func TestBesides(t *testing.T) {
	const (
		ofa   = "-- usr/src/ofa_kernel/default/Module.symvers --\n"
		dkms  = "-- var/lib/dkms/mlnx-ofed-kernel/24.10/source/x --\n"
		card  = "-- sys/bus/pci/devices/0000:5e:00.0/vendor --\n0x15b3\n-- sys/bus/pci/devices/0000:5e:00.0/class --\n0x020700\n"
		ether = "-- sys/bus/pci/devices/0000:5e:00.0/vendor --\n0x15b3\n-- sys/bus/pci/devices/0000:5e:00.0/class --\n0x020000\n"
		mlx5  = "-- sys/module/mlx5_ib/refcnt --\n0\n"
	)
	choice := Choice{Source: SourceNVIDIA}
	for _, x := range []struct {
		name         string
		peermem, gds bool
		ch           Choice
		files        string
		want         []string
	}{
		{"neither is asked for", false, false, choice, card, nil},
		{"another owner", true, true, Choice{Source: SourceNone}, card, nil},
		{"peermem without OFED", true, false, choice, ether, []string{"only if that is installed before the driver's modules are built, and none is here"}},
		{"peermem with OFED", true, false, choice, ofa + card + mlx5, []string{"build the driver's modules again after an update of it"}},
		{"peermem with DOCA by DKMS", true, false, choice, dkms, []string{"build the driver's modules again after an update of it"}},
		{"peermem, and a card without its module", true, false, choice, ofa + card, []string{"build the driver's modules again", "InfiniBand card 0000:5e:00.0 is on the bus, and the module mlx5_ib is not loaded"}},
		{"gds without OFED", false, true, choice, card, []string{"which has to be installed before nvidia-fs, and none is here"}},
		{"gds with OFED", false, true, choice, ofa, nil},
	} {
		d := driver("580")
		d.Peermem, d.GDS = x.peermem, x.gds
		got := besides(simulated(t, x.files), d, x.ch)
		if len(got) != len(x.want) {
			t.Errorf("%s: %q", x.name, got)
			continue
		}
		for i, want := range x.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: %q lacks %q", x.name, got[i], want)
			}
		}
	}
}
