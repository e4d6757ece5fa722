// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// beside is what a key needs to be said with.
var beside = map[string]string{
	"driver.repo.key":  "url = \"file:///srv/mirror\"\nfingerprint = \"EB693B3035CD5710E231E123A4B469963BF863CC\"\n",
	"toolkit.repo.key": "url = \"file:///srv/mirror\"\nfingerprint = \"EB693B3035CD5710E231E123A4B469963BF863CC\"\n",
}

// naming is a spec in which a key has a value.
func naming(k spec.Key, value string) string {
	if k.Type == spec.TypeStrings {
		value = "[" + value + "]"
	}
	return fmt.Sprintf("format = 1\n[%s]\n%s = %s\n%s", k.Section, k.Name, value, beside[k.Section+"."+k.Name])
}

// TestPrivateFilesAreNotQuoted: what is wrong in a file that not every user can read is said by
// line and column: a sudo rule for gpuadm plan is no rule to read /etc/shadow.
func TestPrivateFilesAreNotQuoted(t *testing.T) {
	archive := must.Get(os.ReadFile("../../test/hosts/ubuntu24-h100.txtar"))(t)
	private := host.Attr{Mode: 0o640}
	sudo := func(name string) string { return map[string]string{"SUDO_UID": "1000"}[name] }
	for _, secret := range []string{
		"root:$y$PLANTED:20000::::::\n", "PLANTED = \"PLANTED\"\n", "PLANTED = PLANTED\n[PLANTED]\n", "{\"PLANTED\": {\"PLANTED\": 1}}\n", "PLANTED:\n  - PLANTED\n",
		"version: v1\nmig-configs:\n  PLANTED:\n  - PLANTED: PLANTED\n", "version = 2\nPLANTED = [PLANTED]\n",
	} {
		for _, k := range append(spec.Keys(), spec.Key{Name: "node.toml", File: true}, spec.Key{Name: "-f", File: true}) {
			if !k.File {
				continue
			}
			n := must.Get(simhost.New(archive))(t)
			must.OK(t, errors.Join(n.Mkdir("/etc/gpuadm", host.Attr{Mode: 0o755}), n.Mkdir("/srv", host.Attr{Mode: 0o755})))
			text, flags := "format = 1\n[driver]\n", []string(nil)
			switch {
			case k.Name == "-f":
				flags = []string{"-f", "/etc/shadow"}
			case k.Name == "node.toml":
				text = secret
			default:
				text = naming(k, `"/srv/named"`)
				must.OK(t, n.WriteFile("/srv/named", []byte(secret), private))
			}

			must.OK(t, n.WriteFile("/etc/gpuadm/node.toml", []byte(text), host.Attr{Mode: map[bool]fs.FileMode{
				true:  0o640,
				false: 0o644,
			}[text == secret]}))
			for _, args := range [][]string{{"plan"}, {"plan", "-o", "json"}, {"status"}, {"doctor"}, {"gate"}, {"mig", "fit"}, {"manifest", "device-plugin"}} {
				var said strings.Builder
				e := env{
					stdin: strings.NewReader(""), stdout: &said, stderr: &said, getenv: sudo, root: true,
					open:   func(string, commands.Follow) (host.Host, error) { return n, nil },
					read:   func(string) ([]byte, error) { return []byte(secret), nil },
					public: func(string) bool { return false },
				}
				run(t.Context(), e, append(args, flags...))
				check.That(t, !strings.Contains(said.String(), "PLANTED"), "%s, %q, %s:\n%s", k.Section+"."+k.Name, secret, args, said.String())
			}
		}
	}
}

// TestOwnFilesAreQuoted: an error shows the line to a user who could read the file without gpuadm,
// in a home of mode 0700 too.
func TestOwnFilesAreQuoted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.toml")
	pipe := file + ".pipe"
	must.OK(t, errors.Join(os.Chmod(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600), syscall.Mkfifo(pipe, 0o600)))
	for asks, want := range map[string]bool{"": true, strconv.Itoa(os.Getuid()): true, "4711": false} {
		t.Setenv("SUDO_UID", asks)
		check.Equal(t, readable(file), want, "user %q can read the file", asks)
		check.Equal(t, readable(pipe), want, "user %q can read the pipe", asks)
	}
}

// TestFilesOfASpec: each file that a spec names is judged by its owner, mode and folders before a
// plan is made. Which keys name files the keys' own checks say: they refuse a relative path.
func TestFilesOfASpec(t *testing.T) {
	archive := must.Get(os.ReadFile("../../test/hosts/ubuntu24-h100.txtar"))(t)
	names := 0
	for _, k := range spec.Keys() {
		name := k.Section + "." + k.Name
		_, err := spec.Parse(spec.File{Name: "node.toml", Data: []byte(naming(k, `"a/b"`))})
		file := err != nil && strings.Contains(err.Error(), "is not an absolute path")
		check.That(t, file == k.File, "%s takes a path: %v, and is said to name a file: %v", name, file, k.File)
		if !k.File {
			continue
		}
		names++
		n := must.Get(simhost.New(archive))(t)
		must.OK(t, n.Mkdir("/etc/gpuadm", host.Attr{Mode: 0o755}))
		must.OK(t, errors.Join(n.Mkdir("/srv", host.Attr{Mode: 0o755}), n.Mkdir("/srv/ours", host.Attr{Mode: 0o755})))
		must.OK(t, n.WriteFile("/etc/gpuadm/node.toml", []byte(naming(k, `"/srv/ours/named"`)), host.Attr{Mode: 0o644}))
		must.OK(t, n.WriteFile("/srv/ours/named", nil, host.Attr{Mode: 0o644}))
		said := func() string {
			_, err := env{}.spec(n, nil)
			return fmt.Sprint(err)
		}

		check.Equal(t, said(), "<nil>", "%s of root's:", name)
		must.OK(t, n.SetAttr("/srv/ours/named", host.Attr{Mode: 0o644, UID: 1000}))
		check.Equal(t, said(), "cannot trust /srv/ours/named: user 1000 owns it", "%s of another user's:", name)
		must.OK(t, n.Remove("/srv/ours/named"))
		must.OK(t, n.SetAttr("/srv/ours", host.Attr{Mode: 0o777}))
		check.Equal(t, said(), "cannot trust /srv/ours/named: all users can write to /srv/ours", "%s in a folder of all:", name)
	}

	check.That(t, names >= 8, "only %d keys name files", names)
}

// TestStrangeFilesOfASpec: what a spec names and is not a regular file of a usual size is not opened,
// and not waited for. Plan either refuses it by its name or does not read it.
func TestStrangeFilesOfASpec(t *testing.T) {
	archive := string(must.Get(os.ReadFile("../../test/hosts/ubuntu24-h100.txtar"))(t))
	for _, k := range spec.Keys() {
		if !k.File {
			continue
		}
		for _, kind := range []string{
			"type=fifo", "type=socket", "device=1:5", "type=block", "link=/dev/zero", "link=named", "link=/proc/kcore", "link=/srv/folder", "size=67108865",
		} {
			n := must.Get(simhost.New([]byte(archive + "-- srv/folder/ --\n-- dev/zero device=1:5 mode=0666 --\n-- proc/kcore size=140737471590400 --\n-- srv/named " + kind + " --\n-- etc/gpuadm/node.toml --\n" + naming(k, `"/srv/named"`))))(t)
			code, said := onHost(t, n, "plan")
			named := strings.Contains(said, "/srv/named") || k.Name == "kubeconfig" // the recording's own kubeconfig cannot be read
			refused := (code == exitCannot || code == exitAgain) && named
			silent := k.Section == "mig" && code == exitAgain // no driver answers on the recorded machine
			check.That(t, code == 0 || refused || silent, "%s.%s, %s: exit code %d: %s", k.Section, k.Name, kind, code, said)
		}
	}
}

// TestEndlessFile: -f /dev/zero takes no more memory than a file of a usual size, and a sudo rule
// for gpuadm plan no machine down.
func TestEndlessFile(t *testing.T) {
	for _, args := range [][]string{{"plan", "-f", "/dev/zero"}, {"config", "-f", "/dev/zero"}, {"validate", "/dev/zero"}} {
		var bad strings.Builder
		e := system()
		e.stdout, e.stderr = io.Discard, &bad
		code := run(t.Context(), e, args)
		check.That(t, code == exitUsage && strings.Contains(bad.String(), "has more than 64 MiB"), "%s: exit %d: %s", args, code, &bad)
	}
}

// TestReadOnlyEtc: the plan says that nothing can be written to /etc.
func TestReadOnlyEtc(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	root := t.TempDir()
	at := filepath.Join(root, "etc")
	must.OK(t, os.Mkdir(at, 0o755))
	must.OK(t, syscall.Mount("tmpfs", at, "tmpfs", 0, "mode=755"))
	defer syscall.Unmount(at, syscall.MNT_DETACH)
	must.OK(t, os.Mkdir(at+"/gpuadm", 0o755))
	must.OK(t, os.WriteFile(at+"/gpuadm/node.toml", []byte("format = 1\n"), 0o644))
	for _, readOnly := range []bool{false, true} {
		if readOnly {
			must.OK(t, syscall.Mount("", at, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
		}
		var out, bad strings.Builder
		e := env{
			stdin:  strings.NewReader(""),
			stdout: &out,
			stderr: &bad,
			getenv: func(string) string { return "" },
			open:   local.OpenFollowed,
			read:   os.ReadFile,
		}
		code := run(t.Context(), e, []string{"plan", "--root", root})
		check.That(t, code == 0 && strings.Contains(out.String(), "/etc is on a read-only file system") == readOnly, "read-only %t: exit %d: %s%s", readOnly, code, &out, &bad)
	}
}

// TestRecordOnATerminal: what a file of the machine says does not reach a terminal as it is.
func TestRecordOnATerminal(t *testing.T) {
	screen, close := atTerminal(t, 0)
	h := machine(t)
	e := env{
		stdin:  strings.NewReader(""),
		stdout: screen,
		stderr: io.Discard,
		getenv: func(string) string { return "" },
		open:   func(string, commands.Follow) (host.Host, error) { return h, nil },
		read:   os.ReadFile,
	}
	code := run(t.Context(), e, []string{"facts", "--record"})
	seen := close()
	check.That(t, code == 0 && strings.Contains(seen, `\x1b`) && !strings.ContainsAny(seen, "\x1b\u202e"), "exit %d: %q", code, seen)
}

// TestRecordHasKubeletsFlags: without them a recording has no facts of kubelet.
func TestRecordHasKubeletsFlags(t *testing.T) {
	n := recordedNode(t, "al2023-eks-nvidia")
	code, out := onHost(t, n, "facts", "--record")
	check.That(t, code == 0, "exit %d", code)
	check.Has(t, out, "\nNODEADM_KUBELET_ARGS=--cloud-provider=external", "the recording:")
}

// TestManifestQuotesNoPrivateFile: under sudo an error of manifest does not quote a file of layouts
// that its caller cannot read.
func TestManifestQuotesNoPrivateFile(t *testing.T) {
	for _, key := range []string{"layout = \"a\"", "follow_label = true"} {
		n := recordedNode(t, "ubuntu24-h100")
		const layouts = "/etc/gpuadm/mig.yaml"
		plantFile(t, n, layouts, "version: v1\nplanted-word: planted-value\n")
		must.OK(t, n.SetAttr(layouts, host.Attr{Mode: 0o600}))
		plantFile(t, n, "/etc/gpuadm/node.toml", "format = 1\n[mig]\nfile = \""+layouts+"\"\n"+key+
			"\n[sharing]\ntime_slicing = 2\nstrategy = \"mixed\"\n")

		var out strings.Builder
		e := envOn(n, &out)
		e.getenv = func(name string) string { return map[string]string{"SUDO_UID": "1000"}[name] }
		code := run(t.Context(), e, []string{"manifest", "device-plugin"})
		must.That(t, code != 0 && strings.Contains(out.String(), layouts), "%s: exit code %d: %s", key, code, &out)
		check.That(t, !strings.Contains(out.String(), "planted"), "%s: %s", key, &out)
	}
}
