// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/specs"
)

// TestDeclaredByOthers: a repository that another tool has declared, in each form that apt knows.
// apt reads its lists afterwards, what else the file declares stays, a second apply does nothing,
// and undo restores the file, also where its owner has edited it since.
func TestDeclaredByOthers(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	must.OK(t, os.Remove(m.dir+ourSource))
	m.repo.publish()
	m.write("/root/key.gpg", string(must.Get(os.ReadFile(m.repo.key))(t)))
	fingerprint := ""
	for line := range strings.Lines(m.repo.gpg("--with-colons", "--fingerprint")) {
		if f := strings.Split(line, ":"); f[0] == "fpr" && fingerprint == "" {
			fingerprint = f[9]
		}
	}

	repo := packages.Repository{
		ID:          "driver",
		About:       "the driver",
		URL:         m.repo.url,
		Key:         "/root/key.gpg",
		Fingerprint: fingerprint,
	}
	for name, text := range map[string]string{
		"sources.list.d/cuda.list":     "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] URL/ /\n",
		"sources.list.d/options.list":  "# mine\ndeb [ arch=ARCH  trusted=yes ] URL /\ndeb-src URL/ /\ndeb [trusted=yes] file:/srv/other ./\n",
		"sources.list.d/quoted.list":   "deb [trusted=yes] QUOTED/ /\n",
		"sources.list.d/tabs.list":     "deb\t[trusted=yes]\tURL\t/ # with tabs\n",
		"sources.list":                 "deb [trusted=yes] file:/srv/other ./\ndeb [trusted=yes] URL /\n",
		"sources.list.d/a.sources":     "# mine\n\nTypes: deb\nURIs: URL\nSuites: /\nSigned-By: /usr/share/keyrings/x.gpg\n",
		"sources.list.d/key.sources":   "Types: deb\nURIs: URL/\nSuites: /\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDME\n -----END PGP PUBLIC KEY BLOCK-----\n",
		"sources.list.d/print.sources": "Types: deb\nURIs: URL/\nSuites: /\nSigned-By: EB693B3035CD5710E231E123A4B469963BF863CC\n",
		"sources.list.d/uris.sources":  "types: deb\nuris: file:/srv/other\n URL/\nsuites: /\ntrusted: yes\n\nTypes: deb\nURIs: URL/ file:/srv/other/\nSuites: /\nTrusted: yes\n",
		"sources.list.d/off.sources":   "Enabled: no\nTypes: deb\nURIs: URL/\nSuites: /\n",
	} {
		text = strings.NewReplacer("QUOTED", strings.Replace(m.repo.url, "1", "%31", 1), "URL", m.repo.url, "ARCH", m.repo.arch).Replace(text)
		name = "/etc/apt/" + name
		m.write(name, text)
		e := &converge.Engine{
			Spec: specs.Of(t, "[driver]\nversion = \"580\"\n"),
			Stages: []converge.Stage{{Name: "driver", Wants: func(spec.Spec, facts.Facts) ([]converge.Want, error) {
				sys := packages.System{
					Arch:  m.repo.arch,
					Files: map[string][]byte{name: must.Get(m.Host.ReadFile(name))(t)},
				}
				wants, err := reading().Repositories("apt", []packages.Repository{repo}, host.Via{})
				return append(reading().Declared("apt", []packages.Repository{repo}, sys), wants...), err
			}}},
			ThingOf: func(ref converge.Ref) (converge.Thing, error) {
				switch {
				case ref.Form == packages.FormDeclared:
					return packages.NewDeclared(ref.Name), nil
				case ref.Form == packages.FormSource:
					return packages.NewSource(ref.Name, reading()), nil
				case ref.Kind == "key":
					return things.NewKey(ref), nil
				case ref.Kind == "folder":
					return things.NewFolder(ref.Name), nil
				}
				return packages.NewLists(ref.Name, ref.Reads, reading()), nil
			},
		}
		must.OK(t, os.MkdirAll(m.dir+"/srv/other", 0o755))
		m.write("/srv/other/Packages", "")
		_, err := e.Apply(t.Context(), m)
		check.That(t, err == nil, "%s: %s", name, wordsOf(err))
		read := m.must("apt-get", "update", "--print-uris")
		is, _ := m.Host.ReadFile(name)
		check.That(t, strings.Count(read, "_InRelease") <= 2 && strings.Contains(read, m.repo.url) && strings.Contains(read, "srv/other") == strings.Contains(text, "/srv/other"), "%s: apt reads\n%s of\n%s", name, read, is)
		again := must.Get(e.Apply(t.Context(), m))(t)
		check.That(t, again.Run == "", "%s: the second apply made %v", name, again.Made)
		m.write(name, "# theirs\n"+string(is))
		must.Get(e.Undo(t.Context(), m, "all", nil))(t)
		back, _ := m.Host.ReadFile(name)
		check.Equal(t, string(back), "# theirs\n"+text, "%s", name)
		must.OK(t, os.Remove(m.dir+name))
	}

	m.write("/etc/apt/sources.list.d/a.list", "deb [signed-by=/a.gpg] file:/srv/x /\ndeb file:/srv/x /\n")
	found := must.Get(apt{}.readable([]packages.Repository{repo}, nil).Look(t.Context(), m))(t)
	check.That(t, strings.Contains(string(found), "with different keys"), "two keys of one repository: %q", found)
}

// TestCommentInAField: deb822(5) allows comments between the lines of a field, which stays one.
func TestCommentInAField(t *testing.T) {
	t.Parallel()
	const text = "Types: deb\nURIs: http://a.example/x\n# theirs\n http://b.example/x\n# last\nSuites: /\n"
	ours := []packages.Repository{{URL: "http://a.example/x"}}
	got := apt{}.Disable("/etc/apt/sources.list.d/x.sources", []byte(text), ours, packages.System{Arch: "amd64"})
	check.Equal(t, string(got), "Types: deb\n"+
		"# gpuadm disabled: URIs: http://a.example/x\n# theirs\n"+
		"# gpuadm replaced:  http://b.example/x\nUris: http://b.example/x\n# last\nSuites: /\n", "the file:")
}
