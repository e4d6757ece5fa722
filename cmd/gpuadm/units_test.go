// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/unit"

	"github.com/gpuadm/gpuadm/images/systemd"
	"github.com/gpuadm/gpuadm/internal/agent"
	"github.com/gpuadm/gpuadm/test/must"
)

// TestBootUnitsHaveALimit: kubelet waits for the first unit, so an apply in there ends by its deadline; systemd's own limit is for a
// process that does not, and leaves it time to put the stage at work back first.
func TestBootUnitsHaveALimit(t *testing.T) {
	for name, text := range map[string][]byte{"gpuadm.service": systemd.Service, "gpuadm-ready.service": systemd.Ready} {
		options := must.Get(unit.DeserializeOptions(bytes.NewReader(text)))(t)
		is := map[string]string{}
		for _, o := range options {
			is[o.Name] = o.Value
		}
		words := strings.Fields(is["ExecStart"])
		cmd, flags, err := newRoot(env{}).Find(words[1:])
		if err == nil {
			err = cmd.ParseFlags(flags)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		deadline, err := cmd.Flags().GetDuration("deadline")
		if err != nil || deadline < agent.WaitLimit+time.Hour {
			t.Errorf("%s: an apply that compiles modules and waits for %v has %v (%v)", name, agent.WaitLimit, deadline, err)
		}
		if start, err := time.ParseDuration(is["TimeoutStartSec"]); err != nil || start < deadline+time.Hour {
			t.Errorf("%s: TimeoutStartSec is %q, with a deadline of %v", name, is["TimeoutStartSec"], deadline)
		}
	}
}
