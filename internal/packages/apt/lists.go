// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// aptLists has the lists of packages that apt has read.
const aptLists = "/var/lib/apt/lists"

// Affects reports that a changed key makes the lists stale.
func (apt) Affects(_ []string, by converge.Change) bool {
	return strings.HasPrefix(by.Name, aptKeys) || by.Form == packages.FormDeclared
}

// Stale compares the times at which files were stored, not their modification times: apt gives a
// list the repository's time. Equal times are no evidence that the list is the younger one: a
// kernel's clock for files has ticks of up to 10 ms.
//
// If gpuadm's files configure no repository, and only pin packages of the distribution, the
// youngest list counts: the repository of another tool may have failed for a long time.
func (apt) Stale(v host.View, files []string) (bool, error) {
	sources, err := sourcesIn(v, files)
	if err != nil {
		return false, err
	}
	if len(Lost(v)) > 0 {
		return true, nil
	}
	if len(sources) == 0 {
		_, read := youngest(v)
		return slices.ContainsFunc(files, func(name string) bool {
			info, err := v.Stat(name)
			return err == nil && !read.After(info.Ctime)
		}), nil
	}

	for _, s := range sources {
		_, read := accepted(v, s)
		if read.IsZero() {
			return true, nil
		}
		// A mirror may have been written since.
		for _, name := range slices.Concat(files, s.signedBy, packages.LocksOf(s.uri)) {
			info, err := v.Stat(name)
			if err == nil && !read.After(info.Ctime) {
				return true, nil
			}
		}
	}

	return false, nil
}

// Lost lists the files of apt's lists that a power cut has left empty: apt syncs none of them. With
// an empty InRelease of any source apt does nothing ("Splitting of clearsigned file … failed"). It
// keeps the repository's time, so that a server answers apt-get update with "not modified". An
// index alone may be empty: that of an unsigned repository without packages is.
func Lost(v host.View) (names []string) {
	signed := false
	for _, entry := range packages.ListOf(v, aptLists) {
		file := aptLists + "/" + entry
		info, err := v.Stat(file)
		if err != nil || !info.Mode.IsRegular() || info.Size > 0 || entry == "lock" {
			continue
		}
		signed = signed || strings.HasSuffix(entry, "InRelease")
		names = append(names, file)
	}

	if !signed {
		return nil
	}
	return names
}

// youngest returns the list that apt has read last; "" before the first update.
func youngest(v host.View) (name string, read time.Time) {
	for _, entry := range packages.ListOf(v, aptLists) {
		file := aptLists + "/" + entry
		info, err := v.Stat(file)
		isList := err == nil && info.Mode.IsRegular() && entry != "lock"
		if isList && info.Ctime.After(read) {
			name = file
			read = info.Ctime
		}
	}
	return name, read
}

// accepted returns the list whose time says when apt last accepted a source's signature: the
// youngest index of packages, which apt stores after that, or else the file with the signature. The
// latter says only when apt verified the signature: apt changes the file's owner and mode for that,
// even if it then refuses the signature. Source: pkgAcqMetaClearSig and
// ChangeOwnerAndPermissionOfFile in apt-pkg/acquire-item.cc; tried with apt 2.6.1.
//
// Two kinds of source have no index of their own: of an empty repository apt stores none, and of a
// local folder (file:) it makes a symbolic link.
func accepted(v host.View, s source) (name string, read time.Time) {
	for _, entry := range packages.ListOf(v, aptLists) {
		end, ok := strings.CutPrefix(entry, s.list())
		if !ok || !isIndex(end) {
			continue
		}
		index := aptLists + "/" + entry
		if _, err := v.Readlink(index); err == nil {
			continue
		}
		info, err := v.Stat(index)
		if err == nil && info.Ctime.After(read) {
			name = index
			read = info.Ctime
		}
	}

	if name == "" {
		return release(v, s)
	}
	return name, read
}

// isIndex reports whether the end of a list's name, behind the source's, is that of an index of
// packages: of a flat repository, or of one component for one architecture. The file may be
// compressed.
func isIndex(end string) bool {
	component, form, ok := strings.Cut(end, "Packages")
	flat := component == ""
	binary := strings.Count(component, "_") == 2 && strings.Contains(component, "_binary-")
	plain := form == ""

	return ok && (flat || binary) && (plain || strings.HasPrefix(form, "."))
}

// release returns the file with the signature that apt has verified of a source's list, and when
// apt stored it. Where apt's settings allow a list without one, apt keeps neither file:
// debReleaseIndex::IsTrusted in apt-pkg/deb/debmetaindex.cc; tried with apt 2.6.1.
func release(v host.View, s source) (string, time.Time) {
	for _, end := range []string{"InRelease", "Release.gpg"} {
		name := aptLists + "/" + s.list() + end
		if info, err := v.Stat(name); err == nil {
			return name, info.Ctime
		}
	}
	return "", time.Time{}
}

// Update has apt read its lists. First it reads all, which include the distribution's lists that
// gpuadm's packages depend on. If that fails, it reads each of gpuadm's own files alone, and every
// one must succeed: a source that another tool broke does not stop gpuadm. Resolve then names a
// missing package.
func (a apt) Update(ctx context.Context, h host.Host, files []string) error {
	sources, err := sourcesIn(h, files)
	if err != nil {
		return err
	}
	for _, name := range Lost(h) {
		if err := h.Remove(name); err != nil {
			return err
		}
	}

	// A mirror needs no list of the distribution, whose servers may be out of reach of a machine
	// with a mirror.
	needsOthers := func(s source) bool { return !packages.IsMirror(h, s.uri) }
	mirrored := len(sources) > 0 && !slices.ContainsFunc(sources, needsOthers)
	var allErr error
	if !mirrored {
		allErr = a.refresh(ctx, h, strictly)
		if allErr == nil {
			return touch(h, files)
		}
	}

	// If the network fails, lists that were read for the same sources suffice: a rollback needs no
	// newer lists.
	noSource := func(file string) bool { return path.Ext(file) != ".sources" }
	stale, err := a.Stale(h, slices.DeleteFunc(slices.Clone(files), noSource))
	if err != nil {
		return err
	}
	everyOne := stale || mirrored
	if err := a.refreshOwn(ctx, h, sources, everyOne); err != nil {
		return err
	}
	if errors.As(allErr, new(packages.Distrust)) {
		// Another tool's source has no signature: the machine's settings say whether apt reads it.
		// If this removes the list of a source of gpuadm's, its signature is gone.
		_ = a.refresh(ctx, h)
		if err := a.refreshOwn(ctx, h, sources, everyOne); err != nil {
			return err
		}
	}

	if _, read := youngest(h); read.IsZero() {
		return allErr // there is no list at all
	}
	return touch(h, files)
}

// refreshOwn reads the lists of each of gpuadm's files alone. Unless everyOne is set, a list may
// stay as it is if its server does not answer.
func (a apt) refreshOwn(ctx context.Context, h host.Host, sources []source, everyOne bool) error {
	for i, s := range sources {
		if i > 0 && sources[i-1].file == s.file {
			continue
		}
		err := a.refresh(ctx, h, strictly,
			"-o", "Dir::Etc::sourcelist="+s.file,
			"-o", "Dir::Etc::sourceparts=-",
			"-o", "APT::Get::List-Cleanup=0")
		if err == nil {
			continue
		}
		if everyOne || errors.As(err, new(packages.Distrust)) || errors.As(err, new(*packages.Locked)) {
			return packages.Unread(h, err, s.uri, s.file)
		}
	}
	return nil
}

// strictly has apt read no list without a signature, whatever the machine's settings allow:
// apt-secure(8).
const strictly = "-oAcquire::AllowInsecureRepositories=false"

// refresh runs apt-get update so that it fails if it cannot read a list. By default apt-get
// continues with the old list of a repository that was tampered with, and exits with 0.
func (a apt) refresh(ctx context.Context, h host.Host, options ...string) error {
	argv := []string{
		"apt-get", "-q", "update",
		"-o", "APT::Update::Error-Mode=any",
		"-o", "Acquire::Retries=3",
	}
	argv = append(argv, options...)
	_, err := packages.Patiently(ctx, h, a.wait, explain, func() ([]byte, error) {
		out, err := h.Do(ctx, argv...)
		if err == nil && sayErr().Match(out) { // apt before 2.1 knows no Error-Mode
			cause := errors.New("apt could not read every list")
			err = &host.CommandError{
				Argv:   argv,
				Stderr: string(out),
				Cause:  cause,
			}
		}

		return out, err
	})
	return err
}

// sayErr matches a list that apt could not read; apt before 2.1 knows no Error-Mode.
var sayErr = pattern.Of(`(?m)^Err:`)

// touch gives lists that apt found current, and so did not rewrite, a time after that of gpuadm's
// files.
func touch(h host.Host, files []string) error {
	sources, err := sourcesIn(h, files)
	if err != nil {
		return err
	}
	for _, s := range sources {
		name, _ := accepted(h, s)
		if name == "" {
			return &trouble.Error{
				What: fmt.Sprintf("cannot find the list of %s %s: apt-get update did not bring it to %s", s.uri, s.suite, aptLists),
				Try:  []string{"apt-config dump Dir, which shows whether a setting of another tool has moved apt's lists, sources or pins: gpuadm needs them in their places"},
			}
		}

		if err := packages.TouchList(h, name); err != nil {
			return err
		}
	}

	name, _ := youngest(h)
	if len(sources) == 0 && name != "" {
		return packages.TouchList(h, name)
	}
	return nil
}
