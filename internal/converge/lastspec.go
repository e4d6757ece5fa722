// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/gpuadm/gpuadm/internal/faults"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// LastSpecFile has the merged spec of the last apply that ended well. A boot at which the machine's
// own files cannot be used goes by it.
const LastSpecFile = Home + "/last-spec.toml"

// lastSpecHead begins the first line of the file. The SHA-256 of all other lines follows.
const lastSpecHead = "# The spec that gpuadm applied last, with all defaults left out. Do not edit it. sha256 "

// A LastSpec is the spec that LastSpecFile has.
type LastSpec struct {
	spec.Spec
	Since time.Time // when an apply of this spec first ended well
}

// String names the spec in messages.
func (l LastSpec) String() string {
	return fmt.Sprintf("the last applied spec %s of %s", l.Digest(), l.Since.Format("2006-01-02 15:04"))
}

// ErrNoLastSpec says that no apply of the machine's own spec has ended well, or that it was undone.
var ErrNoLastSpec = errors.New("no apply of node.toml has ended well on this machine")

// ReadLastSpec reads the spec that was applied last. It is a node.toml, so another version of
// gpuadm reads it as such.
func ReadLastSpec(v host.View) (LastSpec, error) {
	if err := v.Trusted(LastSpecFile); err != nil {
		return LastSpec{}, faults.Untrusted(v.Root(), err)
	}

	data, err := v.ReadFile(LastSpecFile)
	if errors.Is(err, fs.ErrNotExist) {
		return LastSpec{}, ErrNoLastSpec
	}
	if err != nil {
		return LastSpec{}, err
	}
	_, text, _ := bytes.Cut(data, []byte("\n"))
	if !bytes.Equal(data, withHead(text)) {
		return LastSpec{}, fmt.Errorf("cannot use %s: its bytes have changed since gpuadm wrote it", LastSpecFile)
	}

	info, err := v.Stat(LastSpecFile)
	if err != nil {
		return LastSpec{}, err
	}
	s, err := spec.Parse(spec.File{Name: LastSpecFile, Data: text})
	if err != nil {
		why := trouble.OneLine(err.Error())
		return LastSpec{}, fmt.Errorf("cannot use %s, which another version of gpuadm wrote: %s", LastSpecFile, why)
	}
	return LastSpec{s, info.Mtime}, nil
}

// withHead is the file with these lines after the first one.
func withHead(text []byte) []byte {
	return fmt.Appendf(nil, "%s%s\n%s", lastSpecHead, digest(text), text)
}

// keepSpec keeps the spec of an apply that has ended well, if it is the machine's own. If it
// cannot, the apply has ended well all the same, and an event says that a boot would not
// have the spec.
func (r *run) keepSpec(result Result) {
	e := r.engine
	isMachines := e.Own && r.host.Live() && r.journal.Newer == 0
	continues := result.waitsForReboot() || r.needsNewProcess()
	if !isMachines || continues {
		return
	}

	data := withHead(e.Spec.TOML())
	now, err := r.host.ReadFile(LastSpecFile)
	if err == nil && bytes.Equal(now, data) && r.host.Trusted(LastSpecFile) == nil {
		return
	}
	err = makeHome(r.host)
	if err == nil {
		err = r.host.WriteFile(LastSpecFile, data, host.Attr{Mode: 0o600})
	}
	if err != nil {
		text := fmt.Sprintf("cannot keep the spec for a boot at which node.toml cannot be used: %v", err)
		r.event(Event{What: Unkept, Text: text})
	}
}

// ForgetSpec removes the spec that was applied last.
func ForgetSpec(h host.Host) error {
	if _, err := h.Lstat(LastSpecFile); host.NotExist(err) {
		return nil
	}
	unlock, err := h.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	return h.Remove(LastSpecFile)
}

// forgetSpec removes the spec that an undo has reverted. If it cannot, the hold of the undo still
// keeps boots from applying it.
func (r *run) forgetSpec() {
	if _, err := r.host.Lstat(LastSpecFile); host.NotExist(err) {
		return
	}
	if err := r.host.Remove(LastSpecFile); err != nil {
		r.event(Event{
			What: Remains,
			Text: fmt.Sprintf("cannot remove the spec that was applied last: %v", err),
		})
	}
}
