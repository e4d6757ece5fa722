// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// dnfCache has the lists that dnf has read.
const dnfCache = "/var/cache/dnf"

// Affects reports that a changed key, or a package that installs a repository's file, makes the
// lists stale.
func (dnf) Affects(files []string, by converge.Change) bool {
	return strings.HasPrefix(by.Name, dnfKeys) ||
		by.Form == packages.FormDeclared ||
		by.Kind == "package" && brings(by.Name, files)
}

// list returns the file of the signed list that dnf keeps of a repository, in a folder named after
// its id and URL.
// Source: Repo::Impl::getHash in libdnf/repo/Repo.cpp of libdnf's tree.
func (r repository) list(v host.View) string {
	if strings.Contains(r.url(), "$") {
		return r.youngestList(v) // only dnf knows the URL, with its variables filled in
	}
	sum := sha256.Sum256([]byte(r.url()))
	return listIn(fmt.Sprintf("%s-%x", r.id, sum[:8]))
}

func listIn(folder string) string {
	return dnfCache + "/" + folder + "/repodata/repomd.xml"
}

// youngestList returns the list that dnf wrote last for a repository, whatever its URL was then.
func (r repository) youngestList(v host.View) string {
	var youngest time.Time
	found := dnfCache + "/" + r.id // where no list has been written
	for _, folder := range packages.ListOf(v, dnfCache) {
		hash, isOwn := strings.CutPrefix(folder, r.id+"-")
		isHash := len(hash) == 16 && strings.Trim(hash, "0123456789abcdef") == ""
		if !isOwn || !isHash { // of a repository whose id begins like this one
			continue
		}
		info, err := v.Stat(listIn(folder))
		if err == nil && info.Ctime.After(youngest) {
			found = listIn(folder)
			youngest = info.Ctime
		}
	}

	return found
}

// Stale compares the times at which files were stored, not their modification times. Equal times
// are no evidence that the list is the younger one: see the same function of apt.
func (dnf) Stale(v host.View, files []string) (bool, error) {
	repos, err := reposIn(v, files)
	if err != nil {
		return false, err
	}
	for _, r := range repos {
		list, err := v.Stat(r.list(v))
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil
		}
		if err != nil {
			return false, err
		}

		key := strings.TrimPrefix(r.values["gpgkey"], "file://")
		for _, name := range append(packages.LocksOf(r.url()), r.file, key) {
			info, err := v.Stat(name)
			if err == nil && !list.Ctime.After(info.Ctime) {
				return true, nil
			}
		}
	}

	return false, nil
}

// Update has dnf read its lists. First it reads all, which include the distribution's lists that
// gpuadm's packages depend on. If that fails, it reads gpuadm's alone, and every one must succeed:
// a repository that another tool broke does not stop gpuadm.
func (a dnf) Update(ctx context.Context, h host.Host, files []string) error {
	ours, err := reposIn(h, files)
	if err != nil {
		return err
	}
	if _, err := a.run(ctx, h, "makecache", "--refresh"); err != nil {
		for _, r := range ours {
			_, err := a.run(ctx, h, "makecache", "--refresh", "--disablerepo=*", "--enablerepo="+r.id)
			if err != nil {
				return packages.Unread(h, err, r.url(), r.file)
			}
		}
	}

	// A list that dnf found current, and so did not rewrite, gets a time after that of gpuadm's
	// files.
	for _, r := range ours {
		list := r.list(h)
		err := packages.TouchList(h, list)
		if errors.Is(err, fs.ErrNotExist) {
			return &trouble.Error{
				What: fmt.Sprintf("cannot find the list of %s: dnf makecache did not write %s", r.url(), list),
				Try:  []string{"grep cachedir /etc/dnf/dnf.conf, which shows whether a setting has moved dnf's lists: gpuadm needs them in " + dnfCache},
			}
		}
		if err != nil {
			return err
		}
	}

	return nil
}
