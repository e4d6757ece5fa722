// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/fakenvml"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/lab/repos"
	"github.com/gpuadm/gpuadm/test/must"
)

// img is the root folder of an image that is baked.
type img struct {
	t      *testing.T
	root   string
	dist   string // "": bookworm
	kernel string
	driver string // the version that the spec asks for
}

// run runs a program of this machine's, and returns its exit status.
func (i img) run(argv ...string) (code int, out string) {
	i.t.Helper()
	cmd := exec.CommandContext(i.t.Context(), argv[0], argv[1:]...)
	var all bytes.Buffer
	cmd.Stdout, cmd.Stderr = &all, &all
	err := cmd.Run()
	exited := (*exec.ExitError)(nil)
	must.That(i.t, err == nil || errors.As(err, &exited), "%v", err)
	return cmd.ProcessState.ExitCode(), all.String()
}

func (i img) must(argv ...string) string {
	i.t.Helper()
	code, out := i.run(argv...)
	must.That(i.t, code == 0, "%s: exit %d: %s", strings.Join(argv, " "), code, out)
	return out
}

func (i img) put(name, text string, mode os.FileMode) {
	i.t.Helper()
	place := i.root + name
	must.OK(i.t, os.MkdirAll(filepath.Dir(place), 0o755))
	must.OK(i.t, os.WriteFile(place, []byte(text), mode))
}

func (i img) get(name string) string {
	i.t.Helper()
	data := must.Get(os.ReadFile(i.root + name))(i.t)
	return string(data)
}

func (i img) has(name string) bool {
	_, err := os.Lstat(i.root + name)
	return err == nil
}

// furnish makes of a Debian with the headers of a kernel an image that has the kernel, GPUs at its
// boot, and a spec.
func (i *img) furnish(deb string, gpus fakenvml.Parts) {
	i.t.Helper()
	found, err := filepath.Glob(i.root + "/lib/modules/*/build")
	must.That(i.t, err == nil && len(found) == 1, "want the headers of one kernel: %v, %v", found, err)
	i.kernel = filepath.Base(filepath.Dir(found[0]))
	i.put("/lib/modules/"+i.kernel+"/modules.dep", "", 0o644) // as if the kernel were installed, too: its headers are
	i.must("chroot", i.root, "depmod", i.kernel)
	for from, to := range map[string]string{gpus.Tool: "/usr/local/bin/fakenvml", gpus.NvidiaSMI: "/usr/local/bin/nvidia-smi"} {
		data := must.Get(os.ReadFile(from))(i.t)
		i.put(to, string(data), 0o755)
	}

	i.must("env", "FAKENVML_STATE="+i.root+fakeState, gpus.Tool, "new", "--gpus", "H100-80:8")
	i.put("/etc/tmpfiles.d/fake.conf", "L /run/fakenvml.state - - - - "+fakeState+"\n", 0o644)

	i.put("/etc/apt/sources.list", "# the lab's repositories only\n", 0o644)
	i.must("ln", "-sfn", lab.RepoDir+"/"+string(repos.Good), i.root+repos.At)
	key := must.Get(os.ReadFile(deb + "/key.asc"))(i.t)
	i.put("/etc/gpuadm/key.asc", string(key), 0o644)
	of := func(section, version, url string) string {
		return fmt.Sprintf("[%s]\nversion = %q\n[%[1]s.repo]\nurl = %[3]q\nkey = \"/etc/gpuadm/key.asc\"\nfingerprint = %[4]q\n",
			section, version, url, repos.Fingerprint(i.t, deb))
	}

	i.driver, _ = driversOn(i.dist)
	i.put(specFile, "format = 1\n"+of("driver", i.driver, repos.Mirror+"/"+repos.CUDA+"/debian12/x86_64")+
		of("toolkit", "1.18.0", repos.Mirror+"/"+repos.Toolkit+"/deb/amd64")+
		"[[mig.gpu]]\ndevices = [0]\nlayout = { \"3g.40gb\" = 2 }\n"+withoutCDI, 0o644)
	i.put("/etc/machine-id", "0123456789abcdef0123456789abcdef\n", 0o444)
	i.put(smallInitramfs, "MODULES=list\n", 0o644)
}

// TestLabBake: a Debian with a kernel that does not run is baked from a repository, killed in the
// midst of it, baked again, and sealed. The same disk then boots without that repository or any
// other, and its boot unit makes it a node.
func TestLabBake(t *testing.T) {
	t.Parallel()
	lab.Asked(t)
	gpus := fakenvml.Build(t)
	deb := repos.Deb(t, repos.Recipe{NVML: gpus.Library})
	upper := newDisk(t)
	options := lab.Options{Dist: "bookworm", Headers: true}
	kernel := ""
	lab.Have(t, lab.OnDisk(options, upper, func(root string) error {
		i := img{t: t, root: root}
		i.furnish(deb, gpus)
		i.bakes(deb)
		kernel = i.kernel
		return nil
	}))
	options.Over, options.GPUs = upper, 8
	n := driverNode{node{lab.Boot(t, options), t}, ""}
	n.active(bootUnit, "active")
	n.built(kernel, "580.65.06")
	n.has("580.65.06")
	says(t, n.gpuadm(0, "apply"), "Nothing to do.")
	says(t, n.gpuadm(0, "status"), "converged")
	if g := geometry((gpuNode{n.node}).dump().GPUs[0]); strings.Count(g, "3g.40gb@") != 2 {
		t.Errorf("partitions after the first boot: %s\n%s", g, n.Journal(bootUnit))
	}
	n.gpuadm(0, "undo", "--to", "all")
	n.has("580.65.06") // what was baked stays
	check.That(t, n.MainPID(persistenced) != 0, "%s does not run", persistenced)
}

// newDisk is an empty folder on the cache's file system.
func newDisk(t *testing.T) string {
	t.Helper()
	cache := must.Get(lab.CacheDir())(t)
	upper := must.Get(os.MkdirTemp(cache, ".baked-"))(t)
	t.Cleanup(func() { os.RemoveAll(upper) })
	must.OK(t, os.Chmod(upper, 0o755))
	return upper
}

// bake is the command that bakes the image.
func (i img) bake() []string {
	i.t.Helper()
	gpuadm := must.Get(filepath.Abs(filepath.Join(lab.Source(), "bin", "gpuadm")))(i.t)
	return []string{gpuadm, "bake", "--root", i.root}
}

// TestLabBakeDnf: dnf installs in an image, too; a sealed one needs its repository no more.
func TestLabBakeDnf(t *testing.T) {
	t.Parallel()
	lab.Asked(t)
	rpm := repos.RPM(t, repos.Recipe{})
	lab.Have(t, lab.OnDisk(lab.Options{Dist: lab.RHELish}, newDisk(t), func(root string) error {
		i := img{t: t, root: root}
		key, err := os.ReadFile(rpm + "/key.asc")
		if err != nil {
			return err
		}
		i.put("/etc/gpuadm/key.asc", string(key), 0o644)
		i.put(specFile, fmt.Sprintf("format = 1\n[toolkit]\nversion = \"1.18.0\"\n[toolkit.repo]\nurl = %q\nkey = \"/etc/gpuadm/key.asc\"\nfingerprint = %q\n",
			repos.Mirror+"/"+repos.Toolkit+"/rpm/x86_64", repos.Fingerprint(t, rpm)), 0o644)
		i.must("ln", "-sfn", lab.RepoDir+"/"+string(repos.Good), i.root+repos.At)
		i.must("mkdir", "-p", i.root+lab.RepoDir)
		i.must("mount", "--bind", rpm, i.root+lab.RepoDir)
		var planned converge.Plan
		if err := json.Unmarshal([]byte(i.must(append(i.bake(), "--dry-run", "-o", "json")...)), &planned); err != nil {
			return err
		}
		code, out := i.run(append(i.bake(), "--seal", "-o", "json")...)
		i.must("umount", i.root+lab.RepoDir)
		t.Log(out)
		must.That(t, code == 0, "exit %d", code)
		asPlanned(t, planned, out)
		says(t, lab.Result{Stdout: i.must("chroot", i.root, "rpm", "-q", "nvidia-container-toolkit")}, "nvidia-container-toolkit-1.18.0")
		says(t, lab.Result{Stdout: i.get("/usr/share/gpuadm/manifest.json")}, `"nvidia-container-toolkit",`, `"state": "1.18.0-1`)
		says(t, lab.Result{Stdout: i.must(append(i.bake(), "--seal")...)}, "Nothing to do.", "Sealed: 0 files")
		return nil
	}))
}

// asPlanned holds that a bake made what --dry-run said, in that order, and nothing that it deferred
// until first boot. Packages that dnf adds are known once its lists are read.
func asPlanned(t *testing.T, planned converge.Plan, events string) {
	t.Helper()
	var want, got []string
	for line := range strings.Lines(events) {
		var e converge.Event
		if err := json.Unmarshal([]byte(line), &e); err == nil && e.What == converge.Made && e.Line.Kind != "package" {
			got = append(got, e.Line.String())
		}
	}

	for _, ch := range planned.Changes {
		if ch.When != host.AtFirstBoot && ch.Kind != "package" {
			want = append(want, ch.String())
		}
	}

	check.That(t, slices.Equal(want, got), "planned %q, made %q", want, got)
}

// bakes bakes the image from a repository that is there for that time only.
func (i img) bakes(deb string) {
	t := i.t
	t.Helper()
	i.must("mkdir", "-p", i.root+lab.RepoDir)
	i.must("mount", "--bind", deb, i.root+lab.RepoDir)
	defer i.must("umount", i.root+lab.RepoDir)
	bake := append(i.bake(), "--gpu", "H100-80GB")
	spec := filepath.Join(t.TempDir(), "node.toml")
	must.OK(t, os.WriteFile(spec, []byte(i.get(specFile)), 0o644))

	t.Log(i.must(append(bake, "--dry-run")...))
	i.killed(bake)
	code, out := 0, ""
	eventually(func() bool { // dpkg is at work, and holds the run lock
		code, out = i.run("env", "GPUADM="+bake[0], "sh", filepath.Join(lab.Source(), "images/chroot/bake.sh"), i.root, spec, "--gpu", "H100-80GB")
		return code != 75
	})
	t.Log(out)
	must.That(t, code == 0, "bake: exit %d", code)
	for _, name := range []string{"/var/lib/dkms/mok.key", "/var/lib/gpuadm/journal.jsonl", "/usr/sbin/policy-rc.d", "/var/log/dpkg.log"} {
		check.That(t, !i.has(name), "the sealed image has %s", name)
	}
	check.None(t, i.get("/etc/machine-id"), "the sealed image has machine id")
	check.That(t, i.has("/etc/systemd/system/multi-user.target.wants/gpuadm.service"), "the boot unit is not enabled")
	var m struct {
		Kernels []string
		Made    []struct{ Kind, Name, State string }
	}
	err := json.Unmarshal([]byte(i.get("/usr/share/gpuadm/manifest.json")), &m)
	check.That(t, err == nil && len(m.Kernels) == 1 && m.Kernels[0] == i.kernel && len(m.Made) >= 20, "manifest: %+v, %v", m, err)
	before := i.must("find", i.root, "-xdev", "-path", i.root+lab.RepoDir, "-prune", "-o", "-type", "f", "-printf", "%P %s %C@\n")
	says(t, lab.Result{Stdout: i.must(append(bake, "--seal")...)}, "Nothing to do.")
	check.That(t, i.must("find", i.root, "-xdev", "-path", i.root+lab.RepoDir, "-prune", "-o", "-type", "f", "-printf", "%P %s %C@\n") == before, "a second bake has changed files")
	leaked := i.must("sh", "-c", "grep -c ' "+i.root+"' /proc/self/mountinfo")
	check.That(t, strings.TrimSpace(leaked) == "2", "mounts below the image: %s", leaked)
}

// killed begins a bake, and kills gpuadm once dpkg has unpacked a package of the driver.
func (i img) killed(bake []string) {
	i.t.Helper()
	cmd := exec.CommandContext(i.t.Context(), bake[0], bake[1:]...)
	must.OK(i.t, cmd.Start())
	unpacked := func() bool {
		found, _ := filepath.Glob(i.root + "/var/lib/dpkg/info/*nvidia*.list")
		return len(found) > 0
	}

	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	if !eventually(func() bool {
		select {
		case <-ended:
			return true
		default:
			return unpacked()
		}
	}) {
		i.t.Error("nothing was unpacked")
	}

	select {
	case <-ended:
		i.t.Errorf("bake ended before it was killed: %v", cmd.ProcessState)
	default:
		_ = syscall.Kill(cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	}
}

// TestLabBakeThisMachine: a build machine bakes itself. No daemon is started, its running kernel
// counts for nothing, and its next boot makes what was deferred.
func TestLabBakeThisMachine(t *testing.T) {
	t.Parallel()
	n, kernel := bootDKMS(t, "bookworm")
	r := n.wants(0, n.spec("580.65.06", ""), "bake", "--gpu", "H100-80GB")
	t.Log(r.Stdout)
	n.has("580.65.06")
	n.built(kernel, "580.65.06")
	check.That(t, n.MainPID(persistenced) == 0, "%s runs on the build machine", persistenced)
	check.Equal(t, n.Property(persistenced, "UnitFileState"), "enabled", "%s is", persistenced)
	check.That(t, n.Exec("ls", "/usr/sbin/policy-rc.d").Exit != 0, "policy-rc.d is left")
	n.Reboot()
	n.active(bootUnit, "failed") // with exit code 4: this host runs a kernel that is not installed on it, and gpuadm asks for a reboot
	check.That(t, n.MainPID(persistenced) != 0, "%s does not run after the first boot", persistenced)
	says(t, n.gpuadm(0, "apply"), "Nothing to do.")
}

// TestLabBakeModuleKey: an image for Secure Boot is refused without a key. With one its DKMS signs
// by it, with another one the modules are built again, openssl proves each signature, and no
// private key is in the image.
func TestLabBakeModuleKey(t *testing.T) {
	t.Parallel()
	lab.Asked(t)
	gpus := fakenvml.Build(t)
	deb := repos.Deb(t, repos.Recipe{NVML: gpus.Library})
	either(t, func(t *testing.T, o lab.Options) {
		lab.Have(t, lab.OnDisk(lab.Options{
			Dist:    o.Dist,
			Headers: true,
		}, newDisk(t), func(root string) error {
			i := img{t: t, root: root, dist: o.Dist}
			i.furnish(deb, gpus)
			i.must("mkdir", "-p", i.root+lab.RepoDir)
			i.must("mount", "--bind", deb, i.root+lab.RepoDir)
			defer i.must("umount", i.root+lab.RepoDir)
			i.bakesSigned()
			return nil
		}))
	})
}

// TestLabBakeThisMachineSigned: a build machine that bakes itself signs by a key in its memory. One
// on its disk would be in the image: that is refused.
func TestLabBakeThisMachineSigned(t *testing.T) {
	t.Parallel()
	lab.Nightly(t)
	n, kernel := bootDKMS(t, "bookworm")
	n.Must("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=the baker's key", "-keyout", "/dev/shm/key.pem", "-out", "/dev/shm/cert.pem")
	n.Must("cp", "/dev/shm/key.pem", "/root/key.pem")
	bake := func(key string) []string {
		return []string{"bake", "--gpu", "H100-80GB", "--module-key", key, "--module-cert", "/dev/shm/cert.pem", "--seal"}
	}
	first := n.snapshot()
	says(t, n.wants(1, n.spec("580.65.06", ""), bake("/root/key.pem")...), "the private key /root/key.pem lies in it", "/dev/shm")
	n.same(first)
	n.Must("rm", "/root/key.pem")
	t.Log(n.wants(0, n.spec("580.65.06", ""), bake("/dev/shm/key.pem")...).Stdout)
	for _, module := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"} {
		check.Equal(t, modinfo(n.Host, kernel, "signer", module), "the baker's key", "%s: signer", module)
	}
	r := n.Exec("ls", "/run/gpuadm-module.key", "/run/gpuadm-module.der", "/etc/dkms/framework.conf.d/zz-gpuadm.conf")
	check.That(t, r.Stdout == "", "the bake has left %s", r.Stdout)
}

// baker makes a key and a certificate outside of the image.
func (i img) baker(name string) (key, cert string) {
	i.t.Helper()
	dir := i.t.TempDir()
	key, cert = filepath.Join(dir, "key.pem"), filepath.Join(dir, "cert.pem")
	i.must("openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN="+name, "-keyout", key, "-out", cert)
	return key, cert
}

func (i img) bakesSigned() {
	t := i.t
	t.Helper()
	bake := append(i.bake(), "--gpu", "H100-80GB")
	code, out := i.run(append(bake, "--secure-boot")...)
	says(t, lab.Result{Stdout: out}, "bake has no key to sign them with", "--module-key FILE --module-cert FILE")
	isRefused := code == 1 && !i.has("/usr/src/nvidia-"+i.driver)
	must.That(t, isRefused, "exit %d: an image for Secure Boot is not refused before it is touched: %s", code, out)

	earlier, earlierCert := i.baker("an earlier key")
	key, cert := i.baker("the baker's key")
	t.Log(i.must(append(bake, "--module-key", earlier, "--module-cert", earlierCert)...))
	must.That(t, i.signed("nvidia", earlierCert) && !i.signed("nvidia", cert), "the package's build is not signed by the key that bake was given")
	bake = append(bake, "--module-key", key, "--module-cert", cert, "--seal")
	t.Log(i.must(bake...))
	for _, module := range []string{"nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"} {
		check.That(t, i.signed(module, cert), "the baker's key has not signed %s", module)
	}
	for _, name := range []string{earlier, key} {
		secret := must.Get(os.ReadFile(name))(t)
		line := strings.Split(string(secret), "\n")[5]
		argv := []string{"grep", "-rlF", "-e", line}
		for _, dir := range []string{"etc", "var", "root", "run", "tmp", "boot", "lib/modules", "usr/src", "usr/share/gpuadm"} {
			argv = append(argv, i.root+"/"+dir)
		}
		code, found := i.run(argv...)
		check.That(t, code == 1, "%s is in the image: %s", name, found)
	}

	for _, name := range []string{"/var/lib/dkms/mok.key", "/etc/dkms/framework.conf.d/zz-gpuadm.conf"} {
		check.That(t, !i.has(name), "the sealed image has %s", name)
	}
	var m struct{ SignedBy struct{ Name string } }
	err := json.Unmarshal([]byte(i.get("/usr/share/gpuadm/manifest.json")), &m)
	check.That(t, err == nil && m.SignedBy.Name == "the baker's key", "manifest: %+v, %v", m, err)
	says(t, lab.Result{Stdout: i.must(bake...)}, "Nothing to do.", "Sealed: 0 files")
}

// signed says whether openssl finds a module's appended signature to be of a certificate's key.
// Source: include/linux/module_signature.h in the kernel's tree.
func (i img) signed(module, cert string) bool {
	t := i.t
	t.Helper()
	found, err := filepath.Glob(i.root + "/lib/modules/" + i.kernel + "/updates/dkms/" + module + ".ko*")
	must.That(t, err == nil && len(found) == 1, "%s: %v, %v", module, found, err)
	plain := filepath.Join(t.TempDir(), module+".ko")
	i.must("sh", "-c", `case $1 in *.xz) xz -dc "$1";; *) cat "$1";; esac >"$2"`, "sh", found[0], plain)
	data := must.Get(os.ReadFile(plain))(t)
	body, ok := bytes.CutSuffix(data, []byte("~Module signature appended~\n"))
	if !ok {
		return false
	}
	size := int(binary.BigEndian.Uint32(body[len(body)-4:]))
	end := len(body) - 12
	for name, part := range map[string][]byte{".p7s": body[end-size : end], ".body": body[:end-size]} {
		must.OK(t, os.WriteFile(plain+name, part, 0o600))
	}
	code, out := i.run("openssl", "cms", "-verify", "-binary", "-inform", "DER", "-in", plain+".p7s", "-content", plain+".body",
		"-certfile", cert, "-nointern", "-noverify", "-out", "/dev/null")
	t.Logf("%s: openssl: %s", module, strings.TrimSpace(out))
	return code == 0
}
