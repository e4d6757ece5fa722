// SPDX-License-Identifier: Apache-2.0

// Package labstage is a stage for tests in the lab: what no stage that ships does quickly and on
// any machine, a slow command and a setting that holds only after a reboot. The lab builds a gpuadm
// that has it in front of its own stages; the gpuadm that ships does not.
//
// What it wants lies in files of the host, so that a host without them needs nothing of it.
package labstage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// What a test puts on the host to have something wanted.
const (
	// Slow is a file that, while it is there, makes apply run Sleep.
	Slow = "/etc/lab/slow"
	// Setting is a file that wants a setting made; where it says Never, the setting does not hold
	// after a reboot either.
	Setting = "/etc/lab/setting"
	Never   = "never"
)

// Made is where the setting is kept: the boot in which it was made.
const Made = "/var/lib/lab-setting"

// Sleep is the slow command, as ps shows it.
const Sleep = "sleep 301"

// Stages is the stage, to be put in front of others.
func Stages() []converge.Stage {
	return []converge.Stage{{
		Name:  "lab",
		About: "a slow command, and a setting that needs a reboot",
		Wants: wants,
	}}
}

// ThingOf builds the setting again for undo, nil for all other kinds.
func ThingOf(ref converge.Ref) converge.Thing {
	if ref.Kind == (setting{}).Ref().Kind {
		return setting{}
	}
	return nil
}

func wants(spec.Spec, facts.Facts) ([]converge.Want, error) {
	const (
		why     = "a test asks for it"
		section = "driver" // which the spec of all tests has
	)
	step := Step{
		Label: "slow",
		Ask:   []string{"test", "!", "-e", Slow},
		Do:    strings.Fields(Sleep),
	}
	slow := step.Want(why)
	slow.Section = section

	reboots := converge.Want{
		Thing:   setting{},
		Why:     why,
		Section: section,
		Breaks:  []string{"reboot"},
		To: func(found converge.State) (converge.State, error) {
			if found == notAsked {
				return found, nil
			}
			return holds, nil
		},
	}
	return []converge.Want{slow, reboots}, nil
}

// The states of the setting; "" is not made.
const (
	notAsked converge.State = "not asked for"
	waits    converge.State = "waits for a reboot"
	holds    converge.State = "holds"
)

// setting is in force once a boot has begun after it was made, as a driver's option or the kernel's
// command line is.
type setting struct{}

func (setting) Ref() converge.Ref { return converge.Ref{Kind: "lab-setting", Name: Made} }

func (setting) Look(_ context.Context, v host.View) (converge.State, error) {
	asked, err := v.ReadFile(Setting)
	if errors.Is(err, fs.ErrNotExist) {
		return notAsked, nil
	}
	if err != nil {
		return "", err
	}
	made, err := v.ReadFile(Made)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}

	now, err := bootID(v)
	never := strings.TrimSpace(string(asked)) == Never
	if err != nil || never || string(made) == now {
		return waits, err
	}
	return holds, nil
}

func (setting) Make(_ context.Context, h host.Host, to converge.State) error {
	if to != holds {
		return fmt.Errorf("cannot make it %q", to)
	}

	now, err := bootID(h)
	if err != nil {
		return err
	}
	if err := h.WriteFile(Made, []byte(now), host.Attr{Mode: 0o644}); err != nil {
		return err
	}
	return host.Reboot{Why: "the setting is read at boot"}
}

// bootID tells one boot from another.
func bootID(v host.View) (string, error) {
	id, err := v.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
