// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// failing is a machine on which one file cannot be looked at.
type failing struct {
	host.View
	name string
}

func (v failing) ReadFile(name string) ([]byte, error) {
	if name == v.name {
		return nil, &host.FileError{Verb: "read", Path: name, Cause: syscall.EIO}
	}
	return v.View.ReadFile(name)
}

func (v failing) Stat(name string) (host.Info, error) {
	if name == v.name {
		return host.Info{}, &host.FileError{Verb: "look at", Path: name, Cause: syscall.EIO}
	}
	return v.View.Stat(name)
}

// TestOwnersUnknown: a part is not said to have no owner if a sign of one could not be looked at.
func TestOwnersUnknown(t *testing.T) {
	const image = "nvidia-driver-image"
	for _, c := range []struct {
		part, file string // the part that is unknown if the file cannot be looked at
		owner      *facts.Owner
	}{
		{"driver", "/var/lib/nvidia/log", nil},
		{"CDI", "/usr/bin/nvidia-ctk", nil},
		{"CDI", "/var/run/cdi/nvidia.yaml", &facts.Owner{Name: image, Why: "a sign"}},
	} {
		n := must.Get(simhost.New(nil))(t)
		f := facts.Facts{Live: true, DriverOwner: c.owner}
		parts := Owners(t.Context(), failing{n, c.file}, spec.Defaults(), f)

		i := slices.IndexFunc(parts, func(p Part) bool { return p.Name == c.part })
		must.That(t, i >= 0, "no part is named %s", c.part)
		p := parts[i]
		check.That(t, strings.Contains(p.Unknown, c.file), "%s, and %s cannot be looked at: %+v", c.part, c.file, p)
		check.That(t, p.None == "", "%s, and %s cannot be looked at: it has no owner: %s", c.part, c.file, p.None)
	}
}

// TestCDIEnds: the command that ends the toolkit's claim works as typed. Where a package has its unit
// in /etc/systemd/system, systemctl mask fails: the file exists.
func TestCDIEnds(t *testing.T) {
	const unit = "/nvidia-cdi-refresh.service --\n[Service]\nType=oneshot\nExecStart=/usr/bin/nvidia-ctk cdi generate\n"
	for folder, want := range map[string]string{
		"usr/lib/systemd/system": "systemctl mask nvidia-cdi-refresh.service nvidia-cdi-refresh.path",
		"etc/systemd/system":     "systemctl disable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service",
	} {
		n := must.Get(simhost.New([]byte("-- " + folder + unit)))(t)
		p := cdiPart(t.Context(), n, spec.Defaults(), facts.Facts{Live: true}, nil)
		must.That(t, p.Owner != nil && len(p.Owner.Ends) == 1, "%s: %+v", folder, p)
		check.That(t, p.Owner.Ends[0].Setting == want, "%s: %s", folder, p.Owner.Ends[0].Setting)
	}
}

// TestHandlerUnknown: where gpuadm cannot tell which engine kubelet uses, its handler may have an
// owner. Without an engine there is no handler.
func TestHandlerUnknown(t *testing.T) {
	f := facts.Facts{
		Live:    true,
		Kubelet: facts.Kubelet{Unit: "kubelet.service"}, // it starts kubelet through a wrapper
		Engines: []facts.Engine{
			{Name: "containerd", Unit: "containerd.service", Binary: "/usr/bin/containerd"},
			{Name: "crio", Unit: "crio.service", Binary: "/usr/bin/crio"},
		},
	}
	p := handlerPart(spec.Defaults(), f)
	check.That(t, strings.HasPrefix(p.Unknown, "cannot tell which container engine") && p.None == "", "%+v", p)

	p = handlerPart(spec.Defaults(), facts.Facts{Live: true})
	check.That(t, p.Unknown == "" && strings.Contains(p.None, "none is installed"), "%+v", p)
}
