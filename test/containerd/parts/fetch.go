package parts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Step is one part that was fetched, found or missed.
type Step struct {
	Part   Part
	Cached bool
	Took   time.Duration
	// Failed has the errors of the origins before the one that worked.
	Failed []error
	Err    error
}

// Fetch puts the named parts, or all but CRI-O, into the cache and reports each. A
// part that is there already is left alone. It may run in several processes
// at a time; root is not needed.
func Fetch(ctx context.Context, report func(Step), names ...string) error {
	wanted, err := choose(names)
	if err != nil {
		return err
	}
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return fmt.Errorf("cannot make the cache folder: %w", err)
	}
	var failed []error
	for _, w := range wanted {
		step := fetch(ctx, cache, w)
		report(step)
		if step.Err != nil {
			failed = append(failed, step.Err)
		}
	}

	return errors.Join(failed...)
}

// fetch gets one part from the first origin that works.
func fetch(ctx context.Context, cache string, w want) Step {
	start := time.Now()
	step := Step{Part: Part{Name: w.name}}
	cached := func() bool {
		part, err := find(cache, w)
		if err == nil {
			step.Part, step.Cached, step.Took = part, true, time.Since(start)
		}
		return err == nil
	}

	if cached() {
		return step
	}
	held, err := Lock(filepath.Join(cache, w.name+".lock"), syscall.LOCK_EX)
	if err != nil {
		step.Err = fmt.Errorf("cannot lock part %s: %w", w.name, err)
		return step
	}
	defer func() { _ = held.Close() }()
	if cached() { // another process was faster
		return step
	}
	for _, from := range w.from {
		part, err := fetchFrom(ctx, cache, w, from)
		if err == nil {
			step.Part, step.Took = part, time.Since(start)
			return step
		}
		step.Failed = append(step.Failed, fmt.Errorf("cannot get part %s from %s: %w", w.name, from, err))
		if ctx.Err() != nil {
			break
		}
	}

	step.Took, step.Err, step.Failed = time.Since(start), errors.Join(step.Failed...), nil
	return step
}

// fetchFrom makes a cache entry in a scratch folder beside its place and
// renames it there when all of it is good.
func fetchFrom(ctx context.Context, cache string, w want, from origin) (_ Part, err error) {
	pattern := "." + w.name + "-"
	if stale, err := filepath.Glob(filepath.Join(cache, pattern+"*")); err == nil {
		for _, dir := range stale { // of a fetch that was killed: we hold the lock
			_ = os.RemoveAll(dir)
		}
	}

	scratch, err := os.MkdirTemp(cache, pattern)
	if err != nil {
		return Part{}, fmt.Errorf("cannot make a scratch folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	entry := filepath.Join(scratch, "entry")
	if err := os.Mkdir(entry, 0o755); err != nil {
		return Part{}, fmt.Errorf("cannot make the cache entry: %w", err)
	}
	binary := filepath.Join(entry, w.binary)
	if from.release != "" {
		err = unpackDebian(ctx, scratch, from, binary)
	} else {
		err = buildModule(ctx, scratch, from, binary)
	}

	if err != nil {
		return Part{}, err
	}
	version, err := versionOf(ctx, binary, from)
	if err != nil {
		return Part{}, err
	}
	if err := os.WriteFile(filepath.Join(entry, versionFile), []byte(version+"\n"), 0o644); err != nil {
		return Part{}, fmt.Errorf("cannot write the version: %w", err)
	}
	place := filepath.Join(cache, from.key(w.name))
	if err := os.RemoveAll(place); err != nil { // only ever half an entry
		return Part{}, fmt.Errorf("cannot clear the cache entry: %w", err)
	}
	if err := os.Rename(entry, place); err != nil {
		return Part{}, fmt.Errorf("cannot put the cache entry in place: %w", err)
	}
	return load(cache, w, from)
}

// versionOf runs the binary, which also proves that this machine can: a
// package of a newer release may need a newer C library.
func versionOf(ctx context.Context, binary string, from origin) (string, error) {
	if from.command == "./cmd/"+Runtime { // it asks runc, which this machine need not have
		return strings.TrimPrefix(from.version, "v"), nil
	}
	out, err := Run(ctx, "", nil, binary, "--version")
	if err != nil {
		return "", err
	}
	if from.release == "" {
		return strings.TrimPrefix(from.version, "v"), nil
	}
	// "containerd <module> <version> <revision>"
	fields := strings.Fields(string(out))
	if len(fields) < 3 || !strings.HasPrefix(fields[2], from.series) {
		return "", fmt.Errorf("cannot use %s: it is %q, not %s", filepath.Base(binary), bytes.TrimSpace(out), from.series)
	}
	return fields[2], nil
}

// unpackDebian downloads the release's containerd package with a private apt
// state, so that the machine's own lists, sources and database are neither
// needed nor touched, and takes the binary out of it.
func unpackDebian(ctx context.Context, scratch string, from origin, binary string) error {
	mirror, err := DebianMirror(ctx)
	if err != nil {
		return err
	}
	state := filepath.Join(scratch, "apt")
	for _, dir := range []string{"lists/partial", "cache/archives/partial", "deb", "root"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
			return fmt.Errorf("cannot make the apt state: %w", err)
		}
	}

	files := map[string]string{
		"sources.list": "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + mirror + " " + from.release + " main\n",
		"status":       "",
		"apt.conf": fmt.Sprintf(`Dir::State %[1]q;
Dir::State::Lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Etc::SourceList "%[1]s/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
`, state),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(state, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("cannot write the apt state: %w", err)
		}
	}

	conf := filepath.Join(state, "apt.conf")
	if _, err := Run(ctx, state, nil, "apt-get", "-q", "-c", conf, "update"); err != nil {
		return err
	}
	debs := filepath.Join(state, "deb")
	if _, err := Run(ctx, debs, nil, "apt-get", "-q", "-c", conf, "download", "containerd"); err != nil {
		return err
	}
	deb, err := filepath.Glob(filepath.Join(debs, "containerd_*.deb"))
	if err != nil || len(deb) != 1 {
		return fmt.Errorf("cannot find the downloaded package: %d files", len(deb))
	}
	root := filepath.Join(state, "root")
	if _, err := Run(ctx, state, nil, "dpkg-deb", "-x", deb[0], root); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(root, "usr", "bin", "containerd"), binary); err != nil {
		return fmt.Errorf("cannot take the binary out of the package: %w", err)
	}
	return nil
}

// buildModule builds a module's command.
func buildModule(ctx context.Context, scratch string, from origin, binary string) error {
	env := ModuleEnv()
	src, err := CopyModule(ctx, scratch, from.module+"@"+from.version)
	if err != nil {
		return err
	}
	args := []string{"build", "-trimpath", "-ldflags=-s -w", "-o", binary}
	if from.tags != "" {
		args = append(args, "-tags="+from.tags)
	}
	_, err = Run(ctx, src, env, "go", append(args, from.command)...)
	return err
}
