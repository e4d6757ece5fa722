// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

func unitTree() map[string]string {
	const vendor, etc = "/usr/lib/systemd/system/", "/etc/systemd/system/"
	return map[string]string{
		vendor + "containerd.service":             "[Unit]\nDescription=x\n[Service]\nExecStart=/usr/bin/containerd\n[Install]\nWantedBy=multi-user.target\nAlias=cri.service\n",
		vendor + "containerd.service.d/10.conf":   "[Service]\nNice=1\n",
		etc + "containerd.service.d/20.conf":      "[Service]\nNice=2\n",
		etc + "containerd.service.d/10.conf":      "[Service]\nNice=3\n",
		etc + "containerd.service.d/x.txt":        "no drop-in",
		vendor + "service.d/05-all.conf":          "[Service]\nNice=4\n",
		vendor + "static.service":                 "[Service]\nExecStart=/usr/bin/x\n",
		vendor + "with-also.service":              "[Install]\nRequiredBy=a.target b.target\nAlso=with-also.socket missing.service\n",
		vendor + "with-also.socket":               "[Socket]\nListenStream=/run/x\n[Install]\nWantedBy=sockets.target\n",
		vendor + "gpu-feature-discovery.service":  "[Install]\nWantedBy=multi-user.target\n",
		etc + "gpu-.service.d/prefix.conf":        "[Install]\nWantedBy=\nWantedBy=other.target\n",
		vendor + "moved.service":                  "[Install]\nWantedBy=multi-user.target\n",
		etc + "moved.service.d/x.conf":            "[Install]\nWantedBy=\nWantedBy=other.target\n",
		etc + "empty.service":                     "",
		vendor + "empty.service":                  "[Install]\nWantedBy=multi-user.target\n",
		etc + "own.service":                       "[Install]\nWantedBy=multi-user.target\n",
		etc + "multi-user.target.wants/.keep":     "",
		vendor + "indirect.service":               "[Install]\nAlso=containerd.service\n",
		vendor + "multi-user.target":              "[Unit]\nDescription=x\n",
		etc + "other.target.wants/.keep":          "",
		vendor + "sockets.target":                 "[Unit]\nDescription=x\n",
		"/usr/lib/systemd/system-preset/x.preset": "enable *\n",
	}
}

// layUnits writes the tree, with /lib a link as on most machines.
func layUnits(t *testing.T, h host.Host) {
	t.Helper()
	for name, text := range unitTree() {
		at := "/"
		for _, part := range strings.Split(strings.Trim(path.Dir(name), "/"), "/") {
			at = path.Join(at, part)
			err := h.Mkdir(at, ownedBySelf(0o755))
			must.That(t, err == nil || errors.Is(err, fs.ErrExist), "%v", err)
		}

		must.OK(t, h.WriteFile(name, []byte(text), ownedBySelf(0o644)))
	}

	must.OK(t, h.Symlink("/lib", "usr/lib"))
}

func TestUnitFiles(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		layUnits(t, h)
		state := func(name string) string {
			t.Helper()
			u, err := h.Unit(t.Context(), name)
			later := (host.Later{})
			check.That(t, errors.As(err, &later) && later.Until == "first boot", "unit %s: %v", name, err)
			return u.Load + " " + u.Enabled
		}

		is := func(name, want string) {
			t.Helper()
			check.Equal(t, state(name), want, "%s is", name)
		}

		set := func(name, change string) {
			t.Helper()
			check.OK(t, h.SetUnit(t.Context(), name, host.UnitChange{File: change}))
		}

		link := func(name, want string) {
			t.Helper()
			got, err := h.Readlink("/etc/systemd/system/" + name)
			check.That(t, got == want, "%s says %q (%v), want %q", name, got, err, want)
		}

		is("containerd.service", "loaded disabled")
		is("static.service", "loaded static")
		is("none.service", "not-found ")
		is("empty.service", "masked masked")
		is("indirect.service", "loaded indirect")

		u, _ := h.Unit(t.Context(), "containerd.service")
		want := []string{
			"/usr/lib/systemd/system/containerd.service", "/usr/lib/systemd/system/service.d/05-all.conf",
			"/etc/systemd/system/containerd.service.d/10.conf", "/etc/systemd/system/containerd.service.d/20.conf",
		}
		check.That(t, slices.Equal(u.Files, want), "files %q, want %q", u.Files, want)

		set("containerd.service", "enable")
		is("containerd.service", "loaded enabled")
		link("multi-user.target.wants/containerd.service", "/usr/lib/systemd/system/containerd.service")
		link("cri.service", "/usr/lib/systemd/system/containerd.service")
		set("containerd.service", "enable")
		set("containerd.service", "disable")
		is("containerd.service", "loaded disabled")
		link("cri.service", "")
		set("containerd.service", "disable")

		set("containerd.service", "mask")
		is("containerd.service", "masked masked")
		if err := h.SetUnit(t.Context(), "containerd.service", host.UnitChange{File: "enable"}); err == nil ||
			err.Error() != "cannot enable containerd.service: it is masked" {
			t.Error(err)
		}
		set("containerd.service", "unmask")
		is("containerd.service", "loaded disabled")
		if err := h.SetUnit(t.Context(), "own.service", host.UnitChange{File: "mask"}); !errors.Is(err, fs.ErrExist) {
			t.Errorf("masked over a file: %v", err)
		}

		set("with-also.service", "enable")
		link("a.target.requires/with-also.service", "/usr/lib/systemd/system/with-also.service")
		link("b.target.requires/with-also.service", "/usr/lib/systemd/system/with-also.service")
		is("with-also.socket", "loaded enabled")
		set("with-also.service", "disable")
		is("with-also.socket", "loaded disabled")
		if _, err := h.Stat("/etc/systemd/system/a.target.requires"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("an empty folder was left: %v", err)
		}

		set("moved.service", "enable") // its drop-in empties the list first
		link("other.target.wants/moved.service", "/usr/lib/systemd/system/moved.service")
		link("multi-user.target.wants/moved.service", "")
		set("gpu-feature-discovery.service", "enable") // a drop-in for many has no say in this
		link("multi-user.target.wants/gpu-feature-discovery.service", "/usr/lib/systemd/system/gpu-feature-discovery.service")

		for name, want := range map[string]string{
			"static.service": "cannot enable static.service: its file has no [Install] section, so other units or sockets start it",
			"none.service":   "cannot enable none.service: its unit file is not there: file does not exist",
		} {
			err := h.SetUnit(t.Context(), name, host.UnitChange{File: "enable"})
			check.That(t, err != nil && err.Error() == want, "%v, want %s", err, want)
		}

		err := h.SetUnit(t.Context(), "own.service", host.UnitChange{
			File: "enable",
			Job:  "start",
		})
		check.That(t, errors.As(err, new(host.Later)), "started a unit in an image: %v", err)
		is("own.service", "loaded enabled")
	})
}

// TestUnitLinksReplaceNothing: as systemctl without --force, gpuadm makes no link in the place of an
// operator's file, or of a link to something else.
func TestUnitLinksReplaceNothing(t *testing.T) {
	both(t, func(t *testing.T, h host.Host) {
		layUnits(t, h)
		const alias = "/etc/systemd/system/cri.service"
		const linked = "/etc/systemd/system/linked.service"
		must.OK(t, h.WriteFile(alias, []byte("mine"), ownedBySelf(0o644)))
		must.OK(t, h.Symlink(linked, "/opt/linked.service"))

		err := h.SetUnit(t.Context(), "containerd.service", host.UnitChange{File: "enable"})
		check.That(t, errors.Is(err, fs.ErrExist), "enabled over a file: %v", err)
		data, err := h.ReadFile(alias)
		check.That(t, string(data) == "mine", "the file has %q, %v", data, err)
		_, err = h.Lstat("/etc/systemd/system/multi-user.target.wants/containerd.service")
		check.That(t, errors.Is(err, fs.ErrNotExist), "the unit is half enabled: %v", err)

		must.OK(t, h.Symlink(alias, "/usr/lib/systemd/system/crio.service"))
		err = h.SetUnit(t.Context(), "containerd.service", host.UnitChange{File: "enable"})
		check.That(t, errors.Is(err, fs.ErrExist), "enabled over another unit's alias: %v", err)
		err = h.SetUnit(t.Context(), "linked.service", host.UnitChange{File: "mask"})
		check.That(t, errors.Is(err, fs.ErrExist), "masked over a link: %v", err)
		to, err := h.Readlink(linked)
		check.That(t, to == "/opt/linked.service", "the link says %q, %v", to, err)
	})
}

// TestLikeSystemctl does as systemctl --root does, where there is one to compare with.
func TestLikeSystemctl(t *testing.T) {
	systemctl, err := exec.LookPath("systemctl")
	if err != nil {
		t.Skip("no systemctl to compare with:", err)
	}
	links := func(dir string) (all []string) {
		filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type() == fs.ModeSymlink {
				to, _ := os.Readlink(name)
				// Releases differ in whether they say /lib or /usr/lib.
				all = append(all, strings.TrimPrefix(name, dir)+" -> "+strings.Replace(to, "/usr/lib/", "/lib/", 1))
			}
			return nil
		})
		return all
	}

	one, dir := openFolder(t)
	layUnits(t, one)
	other, otherDir := openFolder(t)
	layUnits(t, other)
	for _, step := range []string{
		"enable containerd.service", "enable with-also.service", "enable gpu-feature-discovery.service", "enable moved.service", "enable own.service",
		"mask static.service", "disable with-also.service", "disable containerd.service", "mask containerd.service", "unmask containerd.service",
		"enable containerd.service", "unmask static.service", "disable gpu-feature-discovery.service", "disable moved.service",
	} {
		change, name, _ := strings.Cut(step, " ")
		must.OK(t, one.SetUnit(t.Context(), name, host.UnitChange{File: change}))
		out, err := exec.Command(systemctl, "--root="+otherDir, change, name).CombinedOutput()
		must.That(t, err == nil, "systemctl %s: %v: %s", step, err, out)
		a, b := links(dir), links(otherDir)
		must.That(t, slices.Equal(a, b), "after %s:\nours   %s\ntheirs %s", step, strings.Join(a, "\n       "), strings.Join(b, "\n       "))
		for name := range unitTree() {
			if ext := path.Ext(name); ext != ".service" && ext != ".socket" || strings.Contains(name, "@") {
				continue
			}
			out, _ := exec.Command(systemctl, "--root="+otherDir, "is-enabled", path.Base(name)).Output()
			u, _ := one.Unit(t.Context(), path.Base(name))
			if want := strings.TrimSpace(string(out)); u.Enabled != want {
				t.Errorf("after %s: %s is %s, systemctl says %s", step, path.Base(name), u.Enabled, want)
			}
		}
	}

	if t.Failed() {
		fmt.Println(strings.Join(links(dir), "\n"))
	}
}
