// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
)

const (
	dnfCache = "/var/cache/dnf"
	dnfKeys  = "/etc/pki/rpm-gpg/"
)

// Affects says that lists are read again with new keys, and with the file about a repository that a package brings.
func (dnf) Affects(files []string, by converge.Change) bool {
	return strings.HasPrefix(by.Name, dnfKeys) || by.Form == packages.FormDeclared || by.Kind == "package" && slices.Contains(files, broughtBy(by.Name))
}

// A repository is one section of a repository file: dnf.conf(5).
type repository struct {
	file, id string
	on       bool
	lines    []string          // all but the first, and the one that says whether it is enabled
	values   map[string]string // by key
}

func parseRepos(file string, data []byte) (all []repository) {
	last := "" // key
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\r\n")
		if id, is := strings.CutSuffix(strings.TrimSpace(line), "]"); is && strings.HasPrefix(id, "[") {
			all = append(all, repository{file: file, id: id[1:], on: true, values: map[string]string{}})
			continue
		}
		if len(all) == 0 || strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		r := &all[len(all)-1]
		if line[0] == ' ' || line[0] == '\t' { // the value goes on
			r.lines, r.values[last] = append(r.lines, line), strings.TrimSpace(r.values[last]+" "+strings.TrimSpace(line))
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if key == "enabled" {
			r.on = says(value)
			continue
		}
		r.lines, r.values[key], last = append(r.lines, line), value, key
	}
	return all
}

// says reads a boolean: dnf.conf(5).
func says(value string) bool {
	return slices.Contains([]string{"1", "yes", "true", "on"}, strings.ToLower(value))
}

// enabled reads the repositories of a file that are not disabled.
func enabled(file string, data []byte) []repository {
	return slices.DeleteFunc(parseRepos(file, data), func(r repository) bool { return !r.on })
}

// reposIn reads files of repositories, those that are there.
func reposIn(v host.View, files []string) (all []repository, err error) {
	for _, f := range files {
		data, err := v.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		all = append(all, enabled(f, data)...)
	}
	return all, nil
}

// url is where a repository is, or the list of its mirrors.
func (r repository) url() string {
	return cmp.Or(r.values["metalink"], r.values["mirrorlist"], r.values["baseurl"])
}

// list is the signed list that dnf keeps of a repository, in a folder named after its id and URL. Where only dnf knows the
// URL, with its variables filled in, it is the youngest that is there.
// Source: Repo::Impl::getHash in libdnf/repo/Repo.cpp of libdnf's tree.
func (r repository) list(v host.View) string {
	if strings.Contains(r.url(), "$") {
		var youngest time.Time
		found := dnfCache + "/" + r.id
		for _, name := range packages.ListOf(v, dnfCache) {
			hash, is := strings.CutPrefix(name, r.id+"-")
			list := dnfCache + "/" + name + "/repodata/repomd.xml"
			if i, err := v.Stat(list); is && len(hash) == 16 && strings.Trim(hash, "0123456789abcdef") == "" && err == nil && i.Ctime.After(youngest) {
				found, youngest = list, i.Ctime
			}
		}
		return found
	}
	sum := sha256.Sum256([]byte(r.url()))
	return fmt.Sprintf("%s/%s-%x/repodata/repomd.xml", dnfCache, r.id, sum[:8])
}

// Stale compares times of files, and not of what they say.
func (dnf) Stale(v host.View, files []string) (bool, error) {
	repos, err := reposIn(v, files)
	if err != nil {
		return false, err
	}
	for _, r := range repos {
		read, err := v.Stat(r.list(v))
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil
		} else if err != nil {
			return false, err
		}
		for _, name := range append(packages.LocksOf(r.url()), r.file, strings.TrimPrefix(r.values["gpgkey"], "file://")) {
			if i, err := v.Stat(name); err == nil && i.Ctime.After(read.Ctime) {
				return true, nil
			}
		}
	}
	return false, nil
}

// Update has dnf read its lists. All of them first, which also brings those of the distribution that ours depend on; if
// anything fails there, ours alone, strictly: what others have broken does not stop us.
func (a dnf) Update(ctx context.Context, h host.Host, files []string) error {
	ours, err := reposIn(h, files)
	if err != nil {
		return err
	}
	if _, err := a.run(ctx, h, "makecache", "--refresh"); err != nil {
		for _, r := range ours {
			if _, err := a.run(ctx, h, "makecache", "--refresh", "--disablerepo=*", "--enablerepo="+r.id); err != nil {
				return packages.Unread(h, err, r.url(), r.file)
			}
		}
	}
	for _, r := range ours {
		// One that dnf found to be current, and so left as it was, gets a time after that of our files.
		if err := packages.TouchList(h, r.list(h)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot find the list of %s: dnf makecache did not bring %s", r.url(), r.list(h))
		} else if err != nil {
			return err
		}
	}
	return nil
}

const dnfRepos = "/etc/yum.repos.d"

// Leftovers names what earlier instructions have left in dnf's configuration.
func (dnf) Leftovers(v host.View) []string {
	var places []packages.Place
	for _, name := range packages.ListOf(v, dnfRepos) {
		file := dnfRepos + "/" + name
		if data, err := v.ReadFile(file); err == nil && strings.HasSuffix(name, ".repo") {
			for _, r := range enabled(file, data) {
				places = append(places, packages.Place{File: file, URL: r.url()})
			}
		}
	}
	return packages.LeftAt(places, "what one says of keys and locks does not hold for the other")
}

// Known asks dnf's caches, and reads no repository.
func (a dnf) Known(ctx context.Context, v host.View, names, _ []string) (map[string][]packages.Offer, time.Time, error) {
	var youngest time.Time
	for _, dir := range packages.ListOf(v, dnfCache) {
		if i, err := v.Stat(dnfCache + "/" + dir + "/repodata/repomd.xml"); err == nil && i.Ctime.After(youngest) {
			youngest = i.Ctime
		}
	}
	if youngest.IsZero() {
		return nil, youngest, nil
	}
	cached := a
	cached.more = append(slices.Clone(a.more), "--cacheonly")
	offers, err := cached.Offers(ctx, v, names)
	if err != nil {
		return nil, time.Time{}, nil // a repository has no cache yet: nothing is known
	}
	return offers, youngest, nil
}
