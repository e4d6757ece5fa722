// SPDX-License-Identifier: Apache-2.0

package crio

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestStartOfCRIO: what a real CRI-O 1.36.3 refuses when it starts is refused with the file's name;
// TestLabCRIOVerdict starts it.
func TestStartOfCRIO(t *testing.T) {
	const runtime = "[crio.runtime]\ndefault_runtime = \"runc\"\n" +
		"[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\n"
	n := must.Get(simhost.New([]byte("-- usr/bin/runc mode=0755 --\n")))(t)
	for name, x := range map[string]struct {
		later string
		args  []string
		says  string
	}{
		"as it should be": {"", nil, ""},
		"a cgroup manager": {
			"[crio.runtime]\ncgroup_manager = \"none\"\n", nil, crioFolder + "/20-x.conf is \"none\"",
		},
		"by an option": {
			"[crio.runtime]\ncgroup_manager = \"none\"\n", []string{"crio", "--cgroup-manager=systemd"}, "",
		},
		"no such default": {
			"[crio.runtime]\ndefault_runtime = \"gone\"\n", nil, crioFolder + "/20-x.conf is \"gone\"",
		},
		"no program": {
			"[crio.runtime.runtimes.runc]\nruntime_path = \"/opt/runc\"\n", nil,
			"runc in " + crioFolder + "/20-x.conf, the default, runs /opt/runc, which is not there",
		},
		"no program of another": {
			"[crio.runtime.runtimes.kata]\nruntime_path = \"/opt/kata\"\n", nil, "",
		},
		"no TOML": {"[crio", nil, ""}, // CRI-O itself says so
	} {
		e := facts.Engine{
			Name: "crio", Version: "1.36.3", Args: x.args,
			Files: crioFiles(crioFolder+"/10-crio.conf", runtime, crioFolder+"/20-x.conf", x.later),
		}
		err := checkStart(n, e)
		check.That(t, (err == nil) == (x.says == ""), "%s: %v", name, err)
		check.Has(t, fmt.Sprint(err), x.says, "%s:", name)
	}
}

// TestHandlerNotLoaded: the log that says why is that of the unit that runs CRI-O.
func TestHandlerNotLoaded(t *testing.T) {
	const loaded = "[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\n"
	want := loadedWith{handlers: []string{"nvidia"}}
	err := want.check([]byte(loaded), "cri-o.service")
	check.Has(t, fmt.Sprint(err), "journalctl -u cri-o.service says why", "the error:")
}

// unread is a machine on which no file can be read.
type unread struct{ *simhost.Node }

func (unread) ReadFile(string) ([]byte, error) { return nil, syscall.EIO }

// TestUnreadDropIn: a drop-in that cannot be read does not count as removed by an undo.
func TestUnreadDropIn(t *testing.T) {
	n := must.Get(simhost.New(nil))(t)
	err := Ready(t.Context(), unread{n}, facts.Engine{Name: "crio", Folder: crioFolder})
	check.That(t, errors.Is(err, syscall.EIO), "%v", err)
}

// TestWordsOfCRIO: of CRI-O's log the reason is left.
func TestWordsOfCRIO(t *testing.T) {
	log := "time=\"t\" level=info msg=\"Updating config from path: /etc/crio/crio.conf.d\"\n" +
		"time=\"t\" level=fatal msg=\"not a valid logrus Level: \\\"loud\\\"\"\n"
	argv := []string{"/usr/bin/crio"}
	err := words(&host.CommandError{
		Argv:   argv,
		Code:   1,
		Stderr: log,
		Cause:  errors.New("exit status 1"),
	})
	const says = `cannot run /usr/bin/crio: exit status 1: "not a valid logrus Level: \"loud\""`
	check.Equal(t, err.Error(), says, "said:")

	other := &host.CommandError{
		Argv:   argv,
		Stderr: "killed",
		Cause:  errors.New("signal"),
	}
	check.That(t, strings.HasSuffix(words(other).Error(), "killed"), "%v", words(other))
}
