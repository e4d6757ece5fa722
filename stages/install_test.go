// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestMaskNotes: systemctl unmask takes the mask off a unit. It knows no drop-ins: their link has to
// be removed.
func TestMaskNotes(t *testing.T) {
	for masked, want := range map[string]string{
		"/etc/systemd/system/gpuadm-drift.timer": "gpuadm-drift.timer is masked, so systemd does not start it; if that is not meant: systemctl unmask gpuadm-drift.timer",
		"/etc/systemd/system/kubelet.service.d/50-gpuadm.conf": "/etc/systemd/system/kubelet.service.d/50-gpuadm.conf is masked, so kubelet does not wait until the node is ready; " +
			"if that is not meant: rm /etc/systemd/system/kubelet.service.d/50-gpuadm.conf && systemctl daemon-reload",
	} {
		n := must.Get(simhost.New(nil))(t)
		must.OK(t, n.PutLink(masked, "/dev/null"))
		notes := maskNotes(n)
		check.That(t, len(notes) == 1 && notes[0] == want, "%s: %q", masked, notes)
	}
}

// TestMaskNotesOfAnImage: the commands of such notes change the image, and not the machine on which
// they are typed.
func TestMaskNotesOfAnImage(t *testing.T) {
	const (
		drift = "/etc/systemd/system/gpuadm-drift.timer"
		gate  = "/etc/systemd/system/kubelet.service.d/50-gpuadm.conf"
	)
	for masked, want := range map[string]string{
		drift: "if that is not meant: systemctl --root=/mnt/image unmask gpuadm-drift.timer",
		gate:  "if that is not meant: rm /mnt/image" + gate,
	} {
		n := must.Get(simhost.New(nil))(t)
		must.OK(t, n.PutLink(masked, "/dev/null"))
		n.Image()
		notes := maskNotes(inFolder{n})
		check.That(t, len(notes) == 1 && strings.HasSuffix(notes[0], want), "%s: %q", masked, notes)
	}
}
