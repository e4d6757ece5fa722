// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
)

// A package with the source of kernel modules has dkms remove what was built of it when it is replaced. On the way back its
// script would build anew, which takes minutes, and fails where the compiler is what broke. So what was built is kept beside
// the package, and dkms takes that in place of a compiler's: by a file that dkms reads for one version and one kernel alone.
// Source: dkms(8), DKMS.CONF OVERRIDES.

const (
	dkmsTree = "/var/lib/dkms"
	dkmsConf = "/etc/dkms"
	builds   = Store + "/builds"
)

// moduleSource is one that a package brings: /usr/src/nvidia-580.95.05, of which dkms says nvidia/580.95.05.
type moduleSource struct{ name, version string }

// sourceOf reads which source a file's name shows.
func sourceOf(file string) (moduleSource, bool) {
	dir, ok := strings.CutPrefix(path.Dir(file), "/usr/src/")
	i := strings.LastIndexByte(dir, '-')
	if !ok || i <= 0 || path.Base(file) != "dkms.conf" || strings.Contains(dir, "/") {
		return moduleSource{}, false
	}
	return moduleSource{dir[:i], dir[i+1:]}, true
}

// keepBuilds copies what dkms has built of a package that is about to be replaced. sources are of its files.
func keepBuilds(ctx context.Context, h host.Host, name, version string, sources []moduleSource) error {
	for _, s := range sources {
		tree := path.Join(dkmsTree, s.name, s.version)
		for _, kernel := range listOf(h, tree) {
			for _, arch := range listOf(h, path.Join(tree, kernel)) {
				from := path.Join(tree, kernel, arch, "module")
				if kernel == "build" || kernel == "source" || len(listOf(h, from)) == 0 {
					continue
				}
				to := path.Join(builds, name+"_"+version, s.name+"-"+s.version+"-"+kernel+"-"+arch)
				if err := keepBuild(ctx, h, from, to); err != nil {
					return fmt.Errorf("cannot keep what dkms has built of %s %s for %s: %w", s.name, s.version, kernel, err)
				}
			}
		}
	}
	return nil
}

// keepBuild copies a folder of modules, uncompressed as a compiler leaves them. A copy that was cut off is made anew: only a
// whole one has its name.
func keepBuild(ctx context.Context, h host.Host, from, to string) error {
	if len(listOf(h, to)) > 0 {
		return nil
	}
	if err := folder(h); err != nil {
		return err
	}
	part := to + ".part"
	for _, argv := range [][]string{{"rm", "-rf", "--", part}, {"mkdir", "-p", "--", path.Dir(to)}, {"cp", "-r", "--", from, part}} {
		if _, err := h.Do(ctx, argv...); err != nil {
			return err
		}
	}
	for _, file := range listOf(h, part) {
		if argv := unpacker(path.Ext(file)); argv != nil {
			if _, err := h.Do(ctx, append(argv, path.Join(part, file))...); err != nil {
				return err
			}
		}
	}
	_, err := h.Do(ctx, "mv", "-T", "--", part, to)
	return err
}

// unpacker is the command that unpacks a compressed module in its place: those that CONFIG_MODULE_COMPRESS_* know.
func unpacker(ext string) []string {
	switch ext {
	case ".xz":
		return []string{"xz", "-d", "-f", "--"}
	case ".zst":
		return []string{"zstd", "-d", "-q", "-f", "--rm", "--"}
	case ".gz":
		return []string{"gzip", "-d", "-f", "--"}
	}
	return nil
}

// reuse has dkms take the kept builds of what gets installed, and returns what puts an end to that.
func reuse(h host.Host, changes []converge.Change) (end func() error, err error) {
	var made []string
	end = func() error {
		var errs []error
		for _, name := range made {
			if err := h.Remove(name); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
	for _, name := range listOf(h, dkmsConf) { // a killed run's
		if conf := path.Join(dkmsConf, name); ours(h, conf) {
			if err := h.Remove(conf); err != nil {
				return end, err
			}
		}
	}
	for _, c := range changes {
		after := Parse(c.After)
		dir := path.Join(builds, c.Name+"_"+after.Version)
		for _, build := range listOf(h, dir) {
			kept, conf := path.Join(dir, build), path.Join(dkmsConf, build+".conf")
			if !after.Installed() || strings.HasSuffix(build, ".part") || !sameKernel(h, kept) {
				continue
			}
			if _, err := h.Stat(conf); !errors.Is(err, fs.ErrNotExist) {
				continue // somebody's own way to build it
			}
			if err := h.WriteFile(conf, []byte(override(kept)), host.Attr{Mode: 0o644}); err != nil {
				return end, errors.Join(err, end())
			}
			made = append(made, conf)
		}
	}
	return end, nil
}

const overrideMark = "# gpuadm: for the way back; gone when that has ended.\n"

// override is in the language that dkms has for it. The modules lie where a compiler would have left them.
func override(kept string) string {
	return overrideMark + "MAKE[0]=\"cp -t . -- " + kept + "/*.ko\"\nCLEAN=\"true\"\nPRE_BUILD=\"\"\nBUILT_MODULE_LOCATION=()\n"
}

// ours says whether a file is an override of ours, that a killed run left.
func ours(v host.View, conf string) bool {
	data, err := v.ReadFile(conf)
	return err == nil && strings.HasPrefix(string(data), overrideMark)
}

// sameKernel says whether the kernel that was built for is still the one of that name: distributions put a mended kernel in
// the place of one with the same name. The folder's name ends in -KERNEL-ARCH.
func sameKernel(v host.View, kept string) bool {
	files := listOf(v, kept)
	if len(files) == 0 {
		return false
	}
	built, err := v.Stat(path.Join(kept, files[0]))
	if err != nil {
		return false
	}
	name := path.Base(kept)
	name = name[:max(0, strings.LastIndexByte(name, '-'))]
	for _, kernel := range listOf(v, "/lib/modules") {
		if strings.HasSuffix(name, "-"+kernel) {
			symbols, err := v.Stat("/lib/modules/" + kernel + "/build/Module.symvers")
			return err == nil && symbols.Ctime.Before(built.Ctime)
		}
	}
	return false
}

// listOf returns the names in a folder, none if it is not there.
func listOf(v host.View, dir string) []string {
	names, _ := v.ReadDir(dir)
	return names
}

// forgo goes on without the packages that could not be kept, where that is the way back, and tells which.
func forgo(ctx context.Context, changes []converge.Change, now func(name string) State, kept func(name, version string) string, err error) error {
	const most = 3
	var lost []string
	for _, c := range replaced(changes, now) {
		if version := now(c.Name).Version; kept(c.Name, version) == "" {
			lost = append(lost, c.Name+" "+version)
		}
	}
	what := strings.Join(lost[:min(len(lost), most)], ", ")
	if len(lost) > most {
		what += fmt.Sprintf(" and %d more", len(lost)-most)
	}
	return converge.Forgo(ctx, cmp.Or(what, "what dkms has built"), err)
}

// replaced returns the changes that take away what dkms may have built of. Where anything is broken there are none: what
// stands is not worth keeping.
func replaced(changes []converge.Change, now func(name string) State) (gone []converge.Change) {
	for _, c := range changes {
		found, after := now(c.Name), Parse(c.After)
		if found.Broken != "" && found.Broken != configFiles {
			return nil
		}
		if found.Installed() && found.Version != after.Version {
			gone = append(gone, c)
		}
	}
	return gone
}
