// SPDX-License-Identifier: Apache-2.0

package simhost

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// A node answers about its units by gpuadm's own reader of unit files, so the two agree whatever
// they say. Here systemd's own reader has the last word: systemd-analyze loads units from a folder,
// without a running systemd, and its debug log describes them.

// unitPath is where systemd looks for units, first the one that counts: systemd.unit(5).
var unitPath = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"}

const (
	inEtc    = "etc/systemd/system/"
	inRun    = "run/systemd/system/"
	inLocal  = "usr/local/lib/systemd/system/"
	inVendor = "usr/lib/systemd/system/"
)

const (
	service = "[Service]\nExecStart=/bin/true\n"
	dropin  = "[Unit]\nDocumentation=https://example.invalid\n"
	link    = "link=" // before a target, instead of a file's text
)

// TestUnitLikeSystemd: of a unit the node says whether it is loaded, and which files make it, in
// their order. gpuadm deals with no instances of templates, and the reader knows none.
func TestUnitLikeSystemd(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		must.That(t, os.Getenv("CI") != "true", "%v", err)
		t.Skip("systemd-analyze is not installed")
	}
	for _, c := range []struct {
		what  string
		unit  string
		files map[string]string
	}{
		{"plain", "a.service", map[string]string{inVendor + "a.service": service}},
		{"missing", "b.service", map[string]string{inVendor + "a.service": service}},
		{"a drop-in of a missing unit", "b.service", map[string]string{inEtc + "b.service.d/x.conf": dropin}},
		{"the operator's over the vendor's", "a.service", map[string]string{inVendor + "a.service": service, inLocal + "a.service": service, inEtc + "a.service": service}},
		{"for this boot over the vendor's", "a.service", map[string]string{inVendor + "a.service": service, inRun + "a.service": service}},

		{"drop-ins by name", "a.service", map[string]string{
			inVendor + "a.service":          service,
			inVendor + "a.service.d/2.conf": dropin, inEtc + "a.service.d/3.conf": dropin, inRun + "a.service.d/1.conf": dropin,
		}},
		{"drop-ins of one name", "a.service", map[string]string{
			inVendor + "a.service":          service,
			inVendor + "a.service.d/x.conf": dropin, inRun + "a.service.d/x.conf": dropin, inLocal + "a.service.d/y.conf": dropin,
		}},
		{"another ending", "a.service", map[string]string{inVendor + "a.service": service, inEtc + "a.service.d/x.txt": dropin}},
		{"a masked drop-in", "a.service", map[string]string{
			inVendor + "a.service": service, inVendor + "a.service.d/x.conf": dropin, inEtc + "a.service.d/x.conf": link + "/dev/null",
		}},
		{"an empty drop-in", "a.service", map[string]string{
			inVendor + "a.service": service, inVendor + "a.service.d/x.conf": dropin, inEtc + "a.service.d/x.conf": "",
		}},
		{"of all services", "a.service", map[string]string{
			inVendor + "a.service": service, inVendor + "service.d/x.conf": dropin, inEtc + "a.service.d/y.conf": dropin, inEtc + "service.d/z.conf": dropin,
		}},
		{"one name for all services and for one", "a.service", map[string]string{
			inVendor + "a.service": service, inEtc + "service.d/x.conf": dropin, inVendor + "a.service.d/x.conf": dropin,
		}},
		{"of a prefix", "a-b-c.service", map[string]string{
			inVendor + "a-b-c.service": service, inEtc + "a-.service.d/3.conf": dropin, inEtc + "a-b-.service.d/2.conf": dropin, inEtc + "a-b-c.service.d/1.conf": dropin,
		}},

		{"masked", "a.service", map[string]string{inVendor + "a.service": service, inEtc + "a.service": link + "/dev/null"}},
		{"masked for this boot", "a.service", map[string]string{inVendor + "a.service": service, inRun + "a.service": link + "/dev/null"}},
		{"an empty file", "a.service", map[string]string{inVendor + "a.service": service, inEtc + "a.service": ""}},
		{"a mask that does not count", "a.service", map[string]string{inEtc + "a.service": service, inRun + "a.service": link + "/dev/null"}},
		{"an alias", "b.service", map[string]string{
			inVendor + "a.service": service, inEtc + "b.service": link + "../../../usr/lib/systemd/system/a.service",
			inEtc + "a.service.d/x.conf": dropin,
		}},
		{"a link to a file elsewhere", "a.service", map[string]string{"opt/a.service": service, inEtc + "a.service": link + "../../../opt/a.service"}},
		{"a link to nothing", "a.service", map[string]string{inEtc + "a.service": link + "../../../opt/a.service"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			is := must.Get(nodeWith(t, c.files).Unit(t.Context(), c.unit))(t)
			load, files := bySystemd(t, program, c.unit, c.files)
			check.Equal(t, is.Load, load, "%s is", c.unit)
			check.List(t, is.Files, files, "%s is made of", c.unit)
		})
	}
}

// nodeWith is a node with these files.
func nodeWith(t *testing.T, files map[string]string) *Node {
	t.Helper()
	var archive strings.Builder
	for name, text := range files {
		if target, is := strings.CutPrefix(text, link); is {
			fmt.Fprintf(&archive, "-- %s link=%s --\n", name, target)
		} else {
			fmt.Fprintf(&archive, "-- %s --\n%s", name, text)
		}
	}

	return must.Get(New([]byte(archive.String())))(t)
}

// bySystemd returns a unit's state and files as systemd reads them.
func bySystemd(t *testing.T, program, unit string, files map[string]string) (load string, made []string) {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		at := filepath.Join(root, name)
		must.OK(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if target, is := strings.CutPrefix(text, link); is {
			must.OK(t, os.Symlink(target, at))
		} else {
			must.OK(t, os.WriteFile(at, []byte(text), 0o644))
		}
	}

	var paths []string
	for _, dir := range unitPath {
		paths = append(paths, root+dir)
	}

	cmd := exec.Command(program, "verify", "--man=no", unit)
	cmd.Dir = t.TempDir() // it finds units in the current folder first
	cmd.Env = append(os.Environ(), "SYSTEMD_LOG_LEVEL=debug", "SYSTEMD_UNIT_PATH="+strings.Join(paths, ":"), "LC_ALL=C")
	output, _ := cmd.CombinedOutput() // the tree lacks the targets that each service needs
	for line := range strings.Lines(string(output)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch {
		case strings.HasSuffix(strings.TrimSpace(line), "Unit "+unit+" not found."):
			load = "not-found"
		case strings.Contains(line, "Unit "+unit+" is masked."):
			load = "masked"
		case key == "Unit Load State":
			load = value
		case key == "Fragment Path", key == "DropIn Path":
			if real, err := filepath.EvalSymlinks(value); err == nil && real != "/dev/null" { // a node names files, not the links to them
				made = append(made, strings.TrimPrefix(real, root))
			}
		}
	}

	must.That(t, load != "", "systemd-analyze does not say how %s is:\n%s", unit, output)
	return load, slices.Clip(made)
}
