// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/local"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// A machine of its own for real apt and dpkg: a folder with an empty package database, into which
// each command sees this machine's /usr mounted. The mounts live in the command's own mount
// namespace and end with it.

const inside = "GPUADM_TEST_ROOT"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == HookVerb {
		if err := Verify(os.Getenv, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}

	if root := os.Getenv(inside); root != "" {
		enter(root, os.Args[1:])
	}
	os.Exit(m.Run())
}

// enter becomes a command in the folder. It runs in a mount namespace of its own already.
func enter(root string, argv []string) {
	must := func(what string, err error) {
		if err != nil {
			fmt.Fprintf(os.Stderr, "test: cannot %s: %v\n", what, err)
			os.Exit(125)
		}
	}

	must("part with the mounts", syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	for _, dir := range []string{"/usr", "/dev", "/proc"} {
		must("mount "+dir, syscall.Mount(dir, root+dir, "", syscall.MS_BIND|syscall.MS_REC, ""))
	}
	must("mount /usr read-only", syscall.Mount("", root+"/usr", "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	must("chroot", syscall.Chroot(root))
	must("chdir", os.Chdir("/"))
	path, err := exec.LookPath(argv[0])
	must("find "+argv[0], err)
	must("run", syscall.Exec(path, argv, os.Environ()))
}

// machine is a host whose files lie in the folder and whose commands run there.
type machine struct {
	host.Host
	t    *testing.T
	dir  string
	self string // this test's binary
	hook string // what apt runs as gpuadm; "" is this test
	// follow hears what the commands print; may be nil
	follow commands.Follow
	repo   *repo
	apt    apt

	fetched int // files, by the last mirror

	mu  sync.Mutex
	ran []string
}

func (m *machine) Live() bool { return true }
func (m *machine) Runs() bool { return true }

// ReadFile reads of running processes what the machine's own /proc would show.
func (m *machine) ReadFile(name string) ([]byte, error) {
	if strings.HasPrefix(name, "/proc/") {
		return os.ReadFile(name)
	}
	return m.Host.ReadFile(name)
}

func (m *machine) command(argv ...string) *exec.Cmd {
	cmd := exec.Command(m.self, argv...)
	cmd.Env = []string{inside + "=" + m.dir, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Setpgid: true}
	return cmd
}

func (m *machine) Do(ctx context.Context, argv ...string) ([]byte, error) {
	m.mu.Lock()
	m.ran = append(m.ran, strings.Join(argv, " "))
	m.mu.Unlock()
	r := commands.New()
	r.Self = m.hook
	r.Follow = m.follow
	r.Start = func(cmd *exec.Cmd) error {
		inside := m.command(cmd.Args...)
		cmd.Path, cmd.Args, cmd.Env, cmd.SysProcAttr = inside.Path, inside.Args, inside.Env, inside.SysProcAttr
		return cmd.Start()
	}

	out, err := r.Do(ctx, argv, nil)
	if os.Getenv("GPUADM_TEST_TALK") != "" {
		m.t.Logf("%s\n%s%v", strings.Join(argv, " "), out, err)
	}
	return out, err
}

// AskAbout lays the files below the machine's /tmp.
func (m *machine) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error) {
	dir, err := os.MkdirTemp(m.dir+"/tmp", "ask")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return nil, err
		}
	}

	argv = slices.Clone(argv)
	for i := range argv {
		argv[i] = strings.ReplaceAll(argv[i], host.Scratch, strings.TrimPrefix(dir, m.dir))
	}
	return m.Do(ctx, argv...)
}

func (m *machine) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	return m.Do(ctx, argv...)
}

// packagers returns the commands of apt and dpkg that ran since it was last asked.
func (m *machine) packagers() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.DeleteFunc(m.ran, func(c string) bool {
		return !strings.Contains(c, "apt") && !strings.Contains(c, "dpkg")
	})
	m.ran = nil
	return all
}

func (m *machine) must(argv ...string) string {
	m.t.Helper()
	out, err := m.Do(m.t.Context(), argv...)
	must.That(m.t, err == nil, "%s: %v\n%s", strings.Join(argv, " "), err, out)
	return string(out)
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	put(m.t, m.dir+name, text, 0o644)
}

func put(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	must.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must.OK(t, os.WriteFile(name, []byte(text), mode))
}

// has is everything that dpkg and apt say about what is installed: names, versions, selections,
// marks.
func (m *machine) has() string {
	m.t.Helper()
	return m.must("dpkg-query", "-W", "-f", "${Package} ${Version} ${Status}\n") + m.must("apt-mark", "showauto") + m.must("apt-mark", "showhold")
}

// still fails the test unless the machine has the packages that it had before.
func (m *machine) still(before string) {
	m.t.Helper()
	now := m.has()
	check.That(m.t, now == before, "the packages are:\n%swere:\n%s", now, before)
}

const ourSource = "/etc/apt/sources.list.d/gpuadm-test.sources"

// newMachine makes a machine that trusts a signed repository, whose lists are read.
func newMachine(t *testing.T) *machine {
	t.Helper()
	need(t, "apt-get", "dpkg", "dpkg-deb", "gpg")
	if os.Geteuid() != 0 {
		skip(t, "not root: dpkg and chroot need it")
	}
	dir := t.TempDir()
	must.OK(t, os.Chmod(dir, 0o755))
	for _, d := range []string{
		"usr", "dev", "proc", "run", "tmp", "root", "opt", "etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/keyrings", "etc/apt/trusted.gpg.d", "var/lib/dpkg/info",
		"var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/lib/dpkg/alternatives", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt", "var/lib/gpuadm",
	} {
		must.OK(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}

	for _, link := range []string{"bin", "sbin", "lib", "lib64"} {
		must.OK(t, os.Symlink("usr/"+link, filepath.Join(dir, link)))
	}
	for _, f := range []string{"/etc/passwd", "/etc/group", "/etc/ld.so.cache"} {
		data := must.Get(os.ReadFile(f))(t)
		put(t, dir+f, string(data), 0o644)
	}

	self := must.Get(os.Executable())(t)
	h := must.Get(local.Open(dir))(t)
	m := &machine{
		Host: h,
		t:    t,
		dir:  dir,
		self: self,
		repo: newRepo(t),
		apt:  apt{wait: packages.LockWait, pins: pinFolder},
	}
	m.write("/var/lib/dpkg/status", "Package: dpkg\nEssential: yes\nStatus: install ok installed\nPriority: required\nSection: admin\nMaintainer: t <t@example.invalid>\nArchitecture: "+m.repo.arch+"\nVersion: 1.21.22\nDescription: in place of this machine's\n\n")
	m.write("/etc/apt/apt.conf.d/00test", "APT::Sandbox::User \"root\";\nAcquire::http::Proxy \"DIRECT\";\n")
	key := must.Get(os.ReadFile(m.repo.key))(t)
	m.write("/etc/apt/keyrings/gpuadm-test.gpg", string(key))
	m.write(ourSource, "Types: deb\nURIs: "+m.repo.url+"/\nSuites: /\nSigned-By: /etc/apt/keyrings/gpuadm-test.gpg\n")
	return m
}

func (m *machine) update() {
	m.t.Helper()
	m.repo.publish()
	m.must("apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any")
}

func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			skip(t, p+" is not installed here")
		}
	}
}

func skip(t *testing.T, why string) {
	t.Helper()
	must.That(t, os.Getenv("CI") != "true", "%v", why)
	t.Skip(why)
}

// engine converges the machine to what the packages are wanted as, with lists and database first.
func (m *machine) engine(wants func(*packages.Set) []converge.Want) *converge.Engine {
	reads := []string{ourSource}
	driver := must.Get(spec.Parse(spec.File{
		Name: "node.toml",
		Data: []byte("format = 1\n[driver]\nversion = \"580\"\n"),
	}))(m.t)
	return &converge.Engine{
		Spec:  driver,
		Prune: reading().Prune,
		Stages: []converge.Stage{
			{Name: "repositories", About: "knows where packages are", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
				set := newSet(reads...)
				wants(set)
				return []converge.Want{packages.Database(set, "apt", "it was interrupted"), packages.Lists(New(), reads)}, nil
			}},
			{Name: "packages", About: "installs packages", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
				return wants(newSet(reads...)), nil
			}},
		},
		ThingOf: func(ref converge.Ref) (converge.Thing, error) {
			switch ref.Kind {
			case "package":
				return packages.New(ref.Name, reading()), nil
			case "file":
				return things.NewFile(ref.Name, nil), nil
			case "package-lists":
				return packages.NewLists(ref.Name, ref.Reads, reading()), nil
			case "package-database":
				return packages.NewDatabase(ref.Name, reading()), nil
			}
			return nil, fmt.Errorf("no kind %q", ref.Kind)
		},
	}
}

func reading() *packages.Reading { return packages.NewReading(New()) }

func newSet(reads ...string) *packages.Set {
	s := packages.NewSet(reading())
	s.Reads = reads
	return s
}

func wordsOf(err error) string {
	t := (*trouble.Error)(nil)
	if !errors.As(err, &t) {
		return fmt.Sprint(err)
	}
	return strings.Join(slices.Concat([]string{t.What}, t.Because, []string{"undone:"}, t.Undone, []string{"try:"}, t.Try), "\n")
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	check.Says(t, text, parts...)
}

// repo is a flat repository, as NVIDIA's are, signed with a key of its own, and served over HTTP.
type repo struct {
	t    *testing.T
	dir  string
	home string // of gpg
	key  string
	url  string
	arch string

	origin  string // of its Release file; "test" unless set
	release string // more of that file's lines
	edition int
	gone    func() // it answers no more
}

func newRepo(t *testing.T) *repo {
	t.Helper()
	r := &repo{t: t, dir: t.TempDir()}
	var err error
	if r.home, err = os.MkdirTemp("", "gpg"); err != nil { // a short name: gpg's sockets lie in it
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(r.home) })
	r.arch = strings.TrimSpace(r.run("dpkg", "--print-architecture"))
	r.gpg("--quick-gen-key", "test repository <t@example.invalid>", "ed25519", "sign", "1d")
	r.key = filepath.Join(r.home, "key.gpg")
	r.gpg("--output", r.key, "--export")
	t.Cleanup(func() { exec.Command("gpgconf", "--homedir", r.home, "--kill", "all").Run() })
	server := httptest.NewServer(http.FileServer(http.Dir(r.dir)))
	t.Cleanup(server.Close)
	r.gone = server.Close
	r.url = server.URL
	return r
}

func (r *repo) run(argv ...string) string {
	r.t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	must.That(r.t, err == nil, "%s: %v\n%s", strings.Join(argv, " "), err, out)
	return string(out)
}

func (r *repo) gpg(args ...string) string {
	r.t.Helper()
	return r.run(append([]string{"gpg", "--homedir", r.home, "--batch", "--yes", "--quiet", "--passphrase", ""}, args...)...)
}

// revoke revokes the repository's key. gpg has made the certificate together with the key, and put
// a colon into it against an import by mistake.
func (r *repo) revoke() {
	r.t.Helper()
	found := must.Get(filepath.Glob(r.home + "/openpgp-revocs.d/*.rev"))(r.t)
	for _, certificate := range found {
		text := must.Get(os.ReadFile(certificate))(r.t)
		put(r.t, certificate, strings.Replace(string(text), "\n:--", "\n--", 1), 0o600)
		r.gpg("--import", certificate)
	}
}

// A deb is a package to build. Files below DEBIAN are scripts.
type deb struct {
	name, version string
	fields        string // more lines of its control file
	files         map[string]string
}

func (r *repo) add(debs ...deb) {
	r.t.Helper()
	for _, d := range debs {
		dir := r.t.TempDir()
		arch := "Architecture: " + r.arch + "\n"
		put(r.t, dir+"/DEBIAN/control", "Package: "+d.name+"\nVersion: "+d.version+"\n"+arch+"Maintainer: t <t@example.invalid>\nDescription: made for a test\n"+d.fields, 0o644)
		put(r.t, dir+"/opt/"+d.name+"/version", d.version+"\n", 0o644)
		for name, text := range d.files {
			mode := os.FileMode(0o644)
			if strings.HasPrefix(name, "/DEBIAN/") && !strings.HasSuffix(name, "conffiles") {
				mode = 0o755
			}
			put(r.t, dir+name, text, mode)
		}

		r.run("dpkg-deb", "--root-owner-group", "-Znone", "--build", dir, filepath.Join(r.dir, d.name+"_"+strings.ReplaceAll(d.version, ":", "_")+"_"+r.arch+".deb"))
	}
}

func (r *repo) drop(name, version string) {
	r.t.Helper()
	must.OK(r.t, os.Remove(filepath.Join(r.dir, name+"_"+version+"_"+r.arch+".deb")))
}

// publish indexes and signs what there is.
func (r *repo) publish() {
	r.t.Helper()
	debs, _ := filepath.Glob(r.dir + "/*.deb")
	var index strings.Builder
	for _, d := range debs {
		data := must.Get(os.ReadFile(d))(r.t)
		fmt.Fprintf(&index, "%sFilename: ./%s\nSize: %d\nSHA256: %x\n\n", r.run("dpkg-deb", "-f", d), filepath.Base(d), len(data), sha256.Sum256(data))
	}

	put(r.t, r.dir+"/Packages", index.String(), 0o644)
	now := time.Now().UTC()
	release := fmt.Sprintf("Origin: %s\nLabel: test\n%sDate: %s\nValid-Until: %s\nSHA256:\n %x %d Packages\n",
		cmp.Or(r.origin, "test"), r.release, now.Format(time.RFC1123), now.Add(time.Hour).Format(time.RFC1123), sha256.Sum256([]byte(index.String())), index.Len())
	r.sign(release)
}

func (r *repo) sign(release string, by ...string) {
	r.t.Helper()
	plain := filepath.Join(r.home, "Release")
	put(r.t, plain, release, 0o644)
	r.gpg(append(by, "--output", r.dir+"/InRelease", "--clearsign", plain)...)
	// HTTP knows whole seconds; each edition shall be younger than the last.
	r.edition++
	at := time.Now().Add(time.Duration(r.edition-100) * time.Minute)
	for _, name := range []string{"/InRelease", "/Packages"} {
		must.OK(r.t, os.Chtimes(r.dir+name, at, at))
	}
}
