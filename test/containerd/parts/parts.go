// Package parts gives a Go test the real daemons: several containerd
// versions and nvidia-ctk, kept in a cache folder, run on config trees laid
// out in a temporary folder.
//
// The parts are fetched by the command in the folder fetch beside this file:
//
//	go run ./test/containerd/parts/fetch
//
// and a test asks for them:
//
//	for _, daemon := range parts.Get(t).Containerd {
//		root := parts.Lay(t, map[string][]byte{"config.toml": input})
//		dump, stderr, err := daemon.Dump(t, root)
//		…
//		effect := parts.EffectOf(dump)
//	}
//
// Nothing is installed on the machine and the main module does not depend on
// containerd: packages are only unpacked, modules are built on their own.
package parts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/must"
)

// Part is one binary that is there to be run.
type Part struct {
	// Name is what tests call it: "1.6", "2.4", "nvidia-ctk".
	Name string
	// Version is what the binary, or for the toolkit the table, says it is.
	Version string
	// Origin tells where it came from, for people.
	Origin string
	// Path is the binary.
	Path string
}

// Parts are all binaries a test asked for.
type Parts struct {
	// Containerd holds the daemons, oldest first.
	Containerd []Part
	// CTK is nvidia-ctk, Runtime nvidia-container-runtime and Hook
	// nvidia-cdi-hook; the Path of one that was not asked for is empty.
	CTK, Runtime, Hook Part
	// CRIO is CRI-O, for a test that asks for it by name.
	CRIO Part
}

// The parts of the NVIDIA Container Toolkit.
const (
	CTK     = "nvidia-ctk"
	Runtime = "nvidia-container-runtime"
	Hook    = "nvidia-cdi-hook"
)

// CRIO is CRI-O. Its many packages take minutes to build, so it is a part only for who names it.
const CRIO = "crio"

const howToGet = "go run ./test/containerd/parts/fetch"

// Names lists the known parts in the order of the table.
func Names() []string {
	var names []string
	for _, w := range table() {
		names = append(names, w.name)
	}
	return names
}

// Get returns the named parts, or all but CRI-O if no name is given. It never
// fetches anything: where a part is missing the test is skipped with the
// reason and the command that gets it, and fails if CI=true.
func Get(t testing.TB, names ...string) Parts {
	t.Helper()
	wanted := must.Get(choose(names))(t)
	cache, err := CacheDir()
	if err != nil {
		missing(t, err.Error())
	}
	var parts Parts
	for _, w := range wanted {
		part, err := find(cache, w)
		if err != nil {
			missing(t, fmt.Sprintf("%v; to get it: %s %s", err, howToGet, w.name))
		}
		switch w.name {
		case CTK:
			parts.CTK = part
		case Runtime:
			parts.Runtime = part
		case Hook:
			parts.Hook = part
		case CRIO:
			parts.CRIO = part
		default:
			parts.Containerd = append(parts.Containerd, part)
		}
	}

	return parts
}

// Find returns one part of the cache, for programs that are not tests.
func Find(name string) (Part, error) {
	wanted, err := choose([]string{name})
	if err != nil {
		return Part{}, err
	}
	cache, err := CacheDir()
	if err != nil {
		return Part{}, err
	}
	return find(cache, wanted[0])
}

// missing skips the test, or fails it in CI.
func missing(t testing.TB, reason string) {
	t.Helper()
	must.That(t, os.Getenv("CI") != "true", "%v", reason)
	t.Skip(reason)
}

// CacheDir is the folder of the binaries: $GPUADM_TEST_PARTS, or
// gpuadm-test/containerd in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("GPUADM_TEST_PARTS"); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("cannot resolve GPUADM_TEST_PARTS: %w", err)
		}
		return abs, nil
	}

	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cannot find the user's cache folder: %w", err)
	}
	return filepath.Join(dir, "gpuadm-test", "containerd"), nil
}

// choose picks the named lines of the table, in the table's order.
func choose(names []string) ([]want, error) {
	all := table()
	if len(names) == 0 {
		return slices.DeleteFunc(all, func(w want) bool { return w.name == CRIO }), nil
	}
	var wanted []want
	for _, w := range all {
		for _, name := range names {
			if name == w.name {
				wanted = append(wanted, w)
				break
			}
		}
	}

	if len(wanted) != len(names) {
		return nil, fmt.Errorf("cannot choose parts %q: known are %s", names, strings.Join(Names(), ", "))
	}
	return wanted, nil
}

// find looks a part up in the cache, by its origins in their order.
func find(cache string, w want) (Part, error) {
	for _, from := range w.from {
		part, err := load(cache, w, from)
		if err == nil {
			return part, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return Part{}, fmt.Errorf("cannot use part %s: %w", w.name, err)
		}
	}
	return Part{}, fmt.Errorf("cannot find part %s (%s) in %s", w.name, w.from[0], cache)
}

// load reads one cache entry.
func load(cache string, w want, from origin) (Part, error) {
	dir := filepath.Join(cache, from.key(w.name))
	version, err := os.ReadFile(filepath.Join(dir, versionFile))
	if err != nil {
		return Part{}, err
	}
	path := filepath.Join(dir, w.binary)
	if _, err := os.Stat(path); err != nil {
		return Part{}, err
	}
	return Part{
		Name:    w.name,
		Version: strings.TrimSpace(string(version)),
		Origin:  from.String(),
		Path:    path,
	}, nil
}

const versionFile = "VERSION"

// want is one line of the table.
type want struct {
	name   string
	binary string
	// from are the places it is taken from: the first that works.
	from []origin
}

// origin is a Debian release's package, or a Go module's command.
type origin struct {
	// Debian release and the prefix its version must have.
	release, series string
	// Go module, its version, the command in it and the build tags.
	module, version, command, tags string
}

// table is the one place where versions are pinned. Debian serves only the
// newest build of a release's version, so there the series is pinned.
func table() []want {
	const (
		v1  = "github.com/containerd/containerd"
		v2  = "github.com/containerd/containerd/v2"
		cmd = "./cmd/containerd"
		// Snapshotters that need C libraries; CRI does not need them.
		tags = "no_btrfs,no_devmapper,no_zfs,no_aufs"
	)
	toolkit := func(name string) want {
		return want{name, name, []origin{{
			module:  "github.com/NVIDIA/nvidia-container-toolkit",
			version: "v1.20.1", command: "./cmd/" + name,
		}}}
	}
	// No C library is needed for what CRI-O's configuration is about: signatures by OpenPGP in Go, and
	// no file system of btrfs.
	const crioTags = "containers_image_openpgp,containers_image_ostree_stub,exclude_graphdriver_btrfs,btrfs_noversion"
	return []want{
		{"1.6", "containerd", []origin{
			{release: "bookworm", series: "1.6."},
			{module: v1, version: "v1.6.36", command: cmd, tags: tags},
		}},
		{"1.7", "containerd", []origin{
			{release: "trixie", series: "1.7."},
			{module: v1, version: "v1.7.35", command: cmd, tags: tags},
		}},
		{"2.1", "containerd", []origin{{
			module:  v2,
			version: "v2.1.9",
			command: cmd,
			tags:    tags,
		}}},
		// 2.3.4 is the one that refuses drop-ins newer than their root.
		{"2.3", "containerd", []origin{{
			module:  v2,
			version: "v2.3.4",
			command: cmd,
			tags:    tags,
		}}},
		{"2.4", "containerd", []origin{{
			module:  v2,
			version: "v2.4.2",
			command: cmd,
			tags:    tags,
		}}},
		toolkit(CTK), toolkit(Runtime), toolkit(Hook),
		{CRIO, "crio", []origin{{
			module:  "github.com/cri-o/cri-o",
			version: "v1.36.3", command: "./cmd/crio", tags: crioTags,
		}}},
	}
}

// key names the cache entry; it changes with all that changes the binary.
func (o origin) key(name string) string {
	if o.release != "" {
		return fmt.Sprintf("%s-debian-%s-%s", name, o.release, runtime.GOARCH)
	}
	return fmt.Sprintf("%s-%s-%s-%s", name, o.version, runtime.Version(), runtime.GOARCH)
}

// String tells the origin to people.
func (o origin) String() string {
	if o.release != "" {
		return "Debian " + o.release + "'s package"
	}
	return "Go module " + o.module + "@" + o.version
}
