// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// withoutDriver is the want for the partitions of all GPUs while no driver answers.
func withoutDriver(s spec.Spec, f facts.Facts) converge.Want {
	wait := error(host.FirstBoot)
	switch {
	case f.DriverAgain:
		wait = host.NewProcess
	case f.Live:
		wait = host.Later{
			Until:  "once the driver answers (" + f.NoDriver + ")",
			Silent: "the driver does not answer: " + f.NoDriver + containerHint(s, f),
		}
	}

	return untouched("partitions of the GPUs", wait, "their driver reports their state")
}

// containerHint names the key for a machine whose driver comes with a driver container, which
// kubelet starts: until then nothing on the machine shows it. "" where the machine has a driver's
// library, or where the spec asks for a driver.
func containerHint(s spec.Spec, f facts.Facts) string {
	asksForDriver := s.Driver.Version != "" && s.Driver.Owner != "other"
	if f.NVMLSays != "LIBRARY_NOT_FOUND" || asksForDriver || s.Join.Gate == "open" {
		return ""
	}
	return `; if a driver container brings it, which kubelet starts, write gate = "open" in [join]`
}

// refuseByTable refuses, while no driver answers, layouts that the GPUs on the bus cannot have by
// the table of known GPUs. It does not judge unknown GPUs, nor a file that does not exist yet.
func refuseByTable(s spec.Spec, f facts.Facts) error {
	m := s.MIG
	if m.TrustDriver || m.File != "" && len(m.GPU) == 0 && f.Files[m.File] == nil {
		return nil
	}
	entries, err := Asked(m, f.Files[m.File], f.Private[m.File])
	if err != nil {
		return err
	}

	t := read()
	index := 0
	var fits []Assigned
	for _, p := range f.GPUs {
		passedThrough := p.Driver == "vfio-pci" // to a virtual machine: the driver does not count it
		if !p.Display() || passedThrough {
			continue
		}
		device := deviceID(p.Device, p.Vendor)
		subVendor, subDevice, _ := strings.Cut(p.Subsystem, ":")
		model, known := t.byDevice(device)
		g := model.GPU()
		g.Index = index
		g.Address = p.Address
		g.Device = device
		g.Sub = deviceID(subDevice, subVendor)
		index++

		for _, e := range entries {
			if !known || !e.Matches(g) {
				continue
			}
			_, err := model.Fit(StateOf(g), e.Layout)
			if errors.Is(err, errKnown) { // only the driver can judge this layout
				continue
			}
			if err != nil {
				return byTable(err, g)
			}
			fits = append(fits, Assigned{g, e})
		}
	}

	_, err = Offered(s, fits, nil)
	return err
}

// byTable adds to an error of Fit that no driver has been asked.
func byTable(err error, g host.GPU) error {
	var t *trouble.Error
	if errors.As(err, &t) {
		t.Because = append(t.Because, fmt.Sprintf(
			"no driver answers, so GPU %s is judged by its PCI id %s and the table of known GPUs",
			g.Address, g.Device,
		))
		t.Try = append(t.Try, "trust_driver = true in [mig], if the driver that will be installed knows more")
	}
	return err
}

// deviceID writes two PCI ids, 2330 and 10de, like host.GPU and mig-parted: 0x233010DE.
func deviceID(device, vendor string) string {
	return "0x" + strings.ToUpper(device+vendor)
}
