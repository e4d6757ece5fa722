// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package dnf

import (
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

// Unsettles says that lists are read again with new keys, and with the file about a repository that a package brings.
func (dnf) Unsettles(files []string, by converge.Change) bool {
	return strings.HasPrefix(by.Name, dnfKeys) || by.Kind == "package" && slices.Contains(files, broughtBy(by.Name))
}

// A dnfRepository is one section of a repository file: dnf.conf(5).
type dnfRepository struct {
	id, url, key string
	elsewhere    string // the URL of a list of mirrors
}

// parseRepos reads a file of ours. Sections that are disabled are left out.
func parseRepos(data []byte) (all []dnfRepository) {
	on := true
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
			all, on = append(all, dnfRepository{id: strings.Trim(line, "[]")}), true
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || len(all) == 0 || !on {
			continue
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		r := &all[len(all)-1]
		switch key {
		case "baseurl":
			if r.elsewhere == "" {
				r.url = value
			}
		case "metalink":
			r.url, r.elsewhere = value, value
		case "mirrorlist":
			if r.elsewhere == "" {
				r.url, r.elsewhere = value, value
			}
		case "gpgkey":
			r.key = strings.TrimPrefix(value, "file://")
		case "enabled":
			if value == "0" {
				all, on = all[:len(all)-1], false
			}
		}
	}
	return all
}

// list is the signed list that dnf keeps of a repository, in a folder named after its id and URL. Where only dnf knows the
// URL, with its variables filled in, it is the youngest that is there.
// Source: Repo::Impl::getHash in libdnf/repo/Repo.cpp of libdnf's tree.
func (r dnfRepository) list(v host.View) string {
	if strings.Contains(r.url, "$") {
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
	sum := sha256.Sum256([]byte(r.url))
	return fmt.Sprintf("%s/%s-%x/repodata/repomd.xml", dnfCache, r.id, sum[:8])
}

// stale compares times of files, and not of what they say.
func (dnf) Stale(v host.View, files []string) (bool, error) {
	for _, f := range files {
		data, err := v.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return false, err
		}
		for _, r := range parseRepos(data) {
			read, err := v.Stat(r.list(v))
			if errors.Is(err, fs.ErrNotExist) {
				return true, nil
			} else if err != nil {
				return false, err
			}
			for _, name := range []string{f, r.key} {
				if i, err := v.Stat(name); err == nil && i.Ctime.After(read.Ctime) {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

// update has dnf read its lists. All of them first, which also brings those of the distribution that ours depend on; if
// anything fails there, ours alone, strictly: what others have broken does not stop us.
func (a dnf) Update(ctx context.Context, h host.Host, files []string) error {
	var ours []dnfRepository
	at := map[string]string{}
	for _, f := range files {
		data, err := h.ReadFile(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		for _, r := range parseRepos(data) {
			ours, at[r.id] = append(ours, r), f
		}
	}
	if _, err := a.run(ctx, h, "makecache", "--refresh"); err != nil {
		for _, r := range ours {
			if _, err := a.run(ctx, h, "makecache", "--refresh", "--disablerepo=*", "--enablerepo="+r.id); err != nil {
				return packages.Unread(h, err, r.url, at[r.id])
			}
		}
	}
	for _, r := range ours {
		// One that dnf found to be current, and so left as it was, gets a time after that of our files.
		if err := packages.TouchList(h, r.list(h)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot find the list of %s: dnf makecache did not bring %s", r.url, r.list(h))
		} else if err != nil {
			return err
		}
	}
	return nil
}
