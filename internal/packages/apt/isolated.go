// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
)

// isolated is the machine for an apt with its own lists, sources, pins and database: the machine's
// files do not change.
type isolated struct {
	host.Host
	conf string // apt's configuration
}

func (i isolated) argv(argv []string) []string {
	return append([]string{"env", "APT_CONFIG=" + i.conf}, argv...) // apt.conf(5)
}

func (i isolated) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	return i.Host.Ask(ctx, i.argv(argv)...)
}

func (i isolated) AskWith(ctx context.Context, env []string, argv ...string) ([]byte, error) {
	return i.Host.AskWith(ctx, env, i.argv(argv)...)
}

func (i isolated) Do(ctx context.Context, argv ...string) ([]byte, error) {
	return i.Host.Do(ctx, i.argv(argv)...)
}

func (i isolated) AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error) {
	return i.Host.AskAbout(ctx, files, i.argv(argv)...)
}

func confOf(g packages.Gathering) string { return g.Work + "/apt.conf" }

// isolatedConf configures apt for the folders below g.Work. With no package installed apt finds no
// order for immediate configuration; nothing is configured here.
func isolatedConf(g packages.Gathering) []byte {
	return fmt.Appendf(nil, `Dir::State "%[1]s/state";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Log "%[1]s";
Dir::Etc::sourceparts "%[1]s/sources";
Dir::Etc::preferencesparts "%[1]s/pins";
APT::Immediate-Configure "false";
%[2]s`, g.Work, aptConf(g.Via))
}

// isolate writes the files for such an apt, and the machine's sources with those that the mirror is
// made from.
func isolate(ctx context.Context, h host.Host, g packages.Gathering) (isolated, error) {
	i := isolated{h, confOf(g)}
	folders := []string{"/state/lists/partial", "/cache/archives/partial", "/sources", "/pins"}
	mkdir := []string{"mkdir", "-p"}
	for _, folder := range folders {
		mkdir = append(mkdir, g.Work+folder)
	}
	if _, err := h.Do(ctx, mkdir...); err != nil {
		return i, err
	}

	files := map[string][]byte{
		g.Work + "/status": nil,
		i.conf:             isolatedConf(g),
	}
	const theirs = "/etc/apt/sources.list.d"
	names, err := h.ReadDir(theirs)
	if err != nil && !host.NotExist(err) {
		return i, err
	}
	for _, name := range names {
		if strings.HasPrefix(name, packages.OurFiles) {
			continue
		}
		data, err := h.ReadFile(theirs + "/" + name)
		if err != nil {
			return i, err
		}
		files[g.Work+"/sources/"+name] = data
	}

	for _, r := range g.Repos {
		// apt matches a pin that excludes packages with every package, which takes long. A mirror's
		// other sources are the operator's choice.
		r.Pins = slices.DeleteFunc(slices.Clone(r.Pins), func(p packages.Pin) bool {
			return p.Priority < 0
		})
		if len(r.Pins) > 0 {
			files[g.Work+"/pins/"+path.Base(aptPins(r))] = preferences(r)
		}
		if r.URL == "" {
			continue
		}
		keyring := g.Work + "/" + path.Base(aptKeyring(r))
		key := things.Key(keyring, r.Key, r.Fingerprint, g.Via, "").Thing
		if err := key.Make(ctx, h, converge.State(r.Fingerprint)); err != nil {
			return i, err
		}
		files[g.Work+"/sources/"+path.Base(aptSource(r))] = sourceFile(r, keyring)
	}

	for name, data := range files {
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(name, g.Work+"/sources/") {
			mode = 0o600 // sources may hold passwords, and everybody may read the folder of a mirror
		}
		if err := h.WriteFile(name, data, host.Attr{Mode: mode}); err != nil {
			return i, err
		}
	}

	return i, nil
}

// writeStatus writes a database in which only the packages are installed that no source has,
// without dependencies: a package that came from a file cannot be fetched from a source.
func (i isolated) writeStatus(ctx context.Context, file string) ([]byte, error) {
	out, err := i.Ask(ctx, "apt-cache", "--no-all-names", "pkgnames")
	if err != nil {
		return nil, explain(i, string(out), err)
	}
	known := map[string]bool{}
	for name := range strings.Lines(string(out)) {
		known[strings.TrimSpace(name)] = true
	}

	status, err := i.ReadFile(facts.DpkgStatus)
	if err != nil {
		return nil, fmt.Errorf("cannot read dpkg's database: %w", err)
	}
	var kept []byte
	for paragraph := range paragraphs(status) {
		name, text := withoutRelations(paragraph)
		if !known[name] {
			kept = append(append(kept, text...), '\n')
		}
	}

	return kept, i.WriteFile(file, kept, host.Attr{Mode: 0o644})
}

// withoutRelations returns a package's entry with the fields that do not name other packages it
// needs, each with the first line of its value.
func withoutRelations(paragraph []byte) (name string, text []byte) {
	for key, value := range fields(paragraph) {
		switch string(key) {
		case "Package":
			name = string(value)
		case "Status", "Version", "Architecture", "Multi-Arch", "Provides", "Maintainer", "Description":
		default:
			continue
		}

		line, _, _ := bytes.Cut(value, []byte("\n"))
		text = fmt.Appendf(text, "%s: %s\n", key, line)
	}
	return name, text
}
