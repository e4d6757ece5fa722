// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/mask"
)

// Recorder is a View that records all that is read, so that the machine can be simulated elsewhere
// with the same answers. An allow-list decides which files are recorded with their content; of the
// others it records that they exist, and their size. It records nothing of processes, of the
// answers of daemons, the network and CUDA, and of free space.
type Recorder struct {
	host.View

	kubeletFlags []string // files of variables

	mu      sync.Mutex
	files   map[string]*recorded // by path, free of links
	absent  map[string]bool
	asked   []answer
	units   map[string]host.Unit
	uptime  time.Duration
	driver  host.Driver
	none    *host.NoDriver // why no driver answered
	started time.Time      // when the recording began
}

// recorded is one thing in the tree.
type recorded struct {
	info host.Info
	link string
	data []byte // if read says so
	read bool

	isFlags bool // one of Recorder.kubeletFlags
}

// answer is what a command said.
type answer struct {
	argv   []string
	stdout []byte
	err    error
}

// Record wraps a View. kubeletFlags are files of variables that have kubelet's flags and nothing
// else: without their content a recording has no facts of kubelet. Package mask knows their form.
func Record(v host.View, kubeletFlags ...string) *Recorder {
	return &Recorder{
		View:         v,
		kubeletFlags: kubeletFlags,
		files:        map[string]*recorded{},
		absent:       map[string]bool{},
		units:        map[string]host.Unit{},
		started:      v.Now(),
	}
}

// ReadFile is View's.
func (r *Recorder) ReadFile(name string) ([]byte, error) {
	data, err := r.View.ReadFile(name)
	if found := r.note(name, true); found != nil && err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		found.data = slices.Clone(data)
		found.read = true
	}

	return data, err
}

// Stat is View's.
func (r *Recorder) Stat(name string) (host.Info, error) {
	r.note(name, true)
	return r.View.Stat(name)
}

// Lstat is View's.
func (r *Recorder) Lstat(name string) (host.Info, error) {
	r.note(name, false)
	return r.View.Lstat(name)
}

// Readlink is View's.
func (r *Recorder) Readlink(name string) (string, error) {
	r.note(name, false)
	return r.View.Readlink(name)
}

// ReadDir is View's. What the names are is noted too: a link, a folder, how big a file.
func (r *Recorder) ReadDir(name string) ([]string, error) {
	names, err := r.View.ReadDir(name)
	r.note(name, true)
	for _, below := range names {
		r.note(path.Join(name, below), false)
	}
	return names, err
}

// Resolve is View's.
func (r *Recorder) Resolve(name string) (string, error) {
	r.note(name, true)
	return r.View.Resolve(name)
}

// Ask is View's.
func (r *Recorder) Ask(ctx context.Context, argv ...string) ([]byte, error) {
	return r.AskWith(ctx, nil, argv...)
}

// AskWith is View's. The variables are not noted: they may be secrets.
func (r *Recorder) AskWith(ctx context.Context, env []string, argv ...string) ([]byte, error) {
	stdout, err := r.View.AskWith(ctx, env, argv...)
	if !errors.As(err, new(host.Later)) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked = append(r.asked, answer{slices.Clone(argv), slices.Clone(stdout), err})
	}

	return stdout, err
}

// ReadAt is View's. What parts of binaries say is not noted; of a text all is.
func (r *Recorder) ReadAt(name string, p []byte, off int64) (int, error) {
	n, err := r.View.ReadAt(name, p, off)
	if n > 0 && !bytes.Contains(p[:n], []byte{0}) {
		_, _ = r.ReadFile(name)
	} else {
		r.note(name, true)
	}

	return n, err
}

// Unit is View's. The unit's files are noted too.
func (r *Recorder) Unit(ctx context.Context, name string) (host.Unit, error) {
	u, err := r.View.Unit(ctx, name)
	if err == nil {
		r.mu.Lock()
		r.units[name] = u
		r.uptime = u.Uptime
		r.mu.Unlock()
	}

	for _, file := range u.Files {
		_, _ = r.ReadFile(file)
	}
	return u, err
}

// Services lists the services that were asked for and are there.
func (r *Recorder) Services() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, u := range r.units {
		if path.Ext(name) == ".service" && u.Load != "not-found" {
			names = append(names, name)
		}
	}

	return names
}

// note notes a name and all links and folders on the way to it, and returns what is there.
func (r *Recorder) note(name string, follow bool) *recorded {
	at := "/"
	rest := files.Parts(name)
	for hops := 0; len(rest) > 0 && hops <= files.MaxHops; {
		part := rest[0]
		rest = rest[1:]
		if part == ".." {
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		found := r.noteOne(next)
		switch {
		case found == nil:
			return nil
		case found.info.Mode&fs.ModeSymlink == 0:
			at = next
		case len(rest) == 0 && !follow:
			return found
		default:
			hops++
			if strings.HasPrefix(found.link, "/") {
				at = "/"
			}
			rest = append(files.Parts(found.link), rest...)
		}
	}

	return r.noteOne(at)
}

// noteOne notes one path that is free of links but for its last part.
func (r *Recorder) noteOne(name string) *recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.files[name]; found != nil {
		return found
	}

	i, err := r.View.Lstat(name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			r.absent[name] = true
		}
		return nil
	}

	found := &recorded{
		info:    i,
		isFlags: slices.Contains(r.kubeletFlags, name),
	}
	if i.Mode&fs.ModeSymlink != 0 {
		found.link, _ = r.View.Readlink(name)
	}
	r.files[name] = found

	return found
}

// Driver is View's.
func (r *Recorder) Driver(ctx context.Context) (host.Driver, error) {
	found, err := r.View.Driver(ctx)
	none := (*host.NoDriver)(nil)
	if err == nil || errors.As(err, &none) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.driver = found
		r.none = none
	}

	return found, err
}

// safeList has the files that may leave the machine with their content in a recording, and the
// commands.
//
//go:embed safe.txt
var safeList string

// isListed reports whether a file's content may be recorded: the first line of the list that
// matches its name decides.
func isListed(name string) bool {
	for line := range strings.Lines(safeList) {
		line = strings.TrimSpace(line)
		if never, is := strings.CutPrefix(line, "!"); is && matches(never, path.Base(name)) {
			return false
		}
		if matches(line, name) {
			return true
		}
	}
	return false
}

// safe returns the part of a safe file's content that may be recorded.
func safe(name string, data []byte) ([]byte, bool) {
	switch {
	case name == "/var/lib/dpkg/status", name == "/var/lib/apt/extended_states":
		data = knownPackages(data)
	case path.Base(name) == "chassis_asset_tag" && !isCloudTag(string(data)):
		return nil, false
	}

	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 { // mask reads text only
		return data, isSafeBinary(name)
	}
	if name == "/proc/cmdline" {
		return maskWords(data), true
	}
	return mask.File(name, data), true
}

// isSafeBinary reports whether a file that is not text holds no secret.
func isSafeBinary(name string) bool {
	return strings.HasPrefix(name, "/sys/") ||
		strings.Contains(name, "/keyrings/") ||
		strings.Contains(name, "/lib/modules/")
}

// maskWords masks each word of a line as if it were a line.
func maskWords(line []byte) []byte {
	space := []byte(" ")
	newline := []byte("\n")
	words := bytes.ReplaceAll(bytes.TrimSpace(line), space, newline)
	masked := bytes.ReplaceAll(mask.Text(words), newline, space)
	return append(masked, '\n')
}

// matches is path.Match, and "/**" at the end matches all below.
func matches(pattern, name string) bool {
	if above, ok := strings.CutSuffix(pattern, "/**"); ok {
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			if ok, _ := path.Match(above, dir); ok {
				return true
			}
		}
		return false
	}

	ok, _ := path.Match(pattern, name)
	return ok
}

// isCloudTag reports whether a cloud gives this asset tag of the chassis to all its machines; other
// tags are an owner's inventory numbers.
func isCloudTag(tag string) bool {
	switch strings.TrimSpace(tag) {
	case "7783-7084-3265-9085-8269-3286-77", "Amazon EC2", "OracleCloud.com":
		return true
	}
	return false
}

// knownPackages keeps the paragraphs of a dpkg database that are about packages that gpuadm knows,
// without descriptions.
func knownPackages(data []byte) []byte {
	known := regexp.MustCompile(`(?m)^Package: (.*(nvidia|cuda|containerd|docker|cri-|kube|runc|dkms|linux-(image|headers|modules|objects)).*` +
		`|gcc(-[0-9]+)?|make|libc6|systemd|kmod|initramfs-tools)$`)
	prose := regexp.MustCompile(`(?m)^(Description|Conffiles|Maintainer|Homepage|Original-Maintainer):.*\n([ \t].*\n)*`)
	var kept [][]byte
	for paragraph := range bytes.SplitSeq(data, []byte("\n\n")) {
		if known.Match(paragraph) {
			paragraph = prose.ReplaceAll(append(bytes.Clone(paragraph), '\n'), nil)
			kept = append(kept, bytes.TrimSpace(paragraph))
		}
	}

	if len(kept) == 0 {
		return nil
	}
	return append(bytes.Join(kept, []byte("\n\n")), "\n\n"...)
}

// isKernelFile reports whether a file is the kernel's: its times mean nothing.
func isKernelFile(name string) bool {
	for _, folder := range []string{"/proc/", "/sys/", "/dev/"} {
		if strings.HasPrefix(name, folder) {
			return true
		}
	}
	return false
}
