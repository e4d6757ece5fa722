// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/test/must"
)

// repo is a flat repository, as NVIDIA's are, signed with a key of its own, and served over HTTP.
type repo struct {
	t    *testing.T
	dir  string
	home string // of gpg
	key  string
	url  string
	arch string

	origin  string // of its Release file; "test" unless set
	edition int
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
	r.url = server.URL
	return r
}

func (r *repo) run(argv ...string) string {
	r.t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

func (r *repo) gpg(args ...string) string {
	r.t.Helper()
	return r.run(append([]string{"gpg", "--homedir", r.home, "--batch", "--yes", "--quiet", "--passphrase", ""}, args...)...)
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
	release := fmt.Sprintf("Origin: %s\nLabel: test\nDate: %s\nValid-Until: %s\nSHA256:\n %x %d Packages\n",
		cmp.Or(r.origin, "test"), now.Format(time.RFC1123), now.Add(time.Hour).Format(time.RFC1123), sha256.Sum256([]byte(index.String())), index.Len())
	r.sign(release)
}

func (r *repo) sign(release string) {
	r.t.Helper()
	plain := filepath.Join(r.home, "Release")
	put(r.t, plain, release, 0o644)
	r.gpg("--output", r.dir+"/InRelease", "--clearsign", plain)
	// HTTP knows whole seconds; each edition shall be younger than the last.
	r.edition++
	at := time.Now().Add(time.Duration(r.edition-100) * time.Minute)
	for _, name := range []string{"/InRelease", "/Packages"} {
		must.OK(r.t, os.Chtimes(r.dir+name, at, at))
	}
}
