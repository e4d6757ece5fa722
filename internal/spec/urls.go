// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// checkURL never quotes the URL, which may contain a password.
func checkURL(v, example string, schemes ...string) (*url.URL, *trouble.Error) {
	fix := "write it as " + example
	if fault := checkScheme(v, fix, schemes); fault != nil {
		return nil, fault
	}
	u, err := url.Parse(v)
	if err != nil || strings.ContainsAny(v, " \"<>\\^`{|}") {
		return nil, wrong(fix, "this is not a URL")
	}

	isFile := u.Scheme == "file"
	isFolder := u.Host == "" && path.IsAbs(u.Path) && path.Clean(u.Path) != "/"
	switch {
	case u.User != nil:
		const takeOut = "take it out: this file can be read by all"
		return nil, wrong(takeOut, "a URL must not contain a user name or password")
	case strings.Contains(v, "#"):
		return nil, wrong("take out what begins with #", "a fragment makes no sense here")
	case isFile && !isFolder:
		const slashes = "write it with three slashes: file:///srv/mirror"
		return nil, wrong(slashes, "the URL has no absolute path of a folder")
	case !isFile && u.Hostname() == "":
		return nil, wrong(fix, "the URL has no host")
	case !validPort(u.Port()):
		return nil, wrong(fix, "the URL's port is not from 1 to 65535")
	}

	return u, nil
}

// validPort says whether a URL may have this port; "" is the scheme's own.
func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && n > 0
}

// checkScheme quotes a scheme only if it looks like one: it may be a password.
func checkScheme(v, fix string, schemes []string) *trouble.Error {
	scheme, _, found := strings.Cut(v, "://")
	scheme = strings.ToLower(scheme)
	if found && slices.Contains(schemes, scheme) {
		return nil
	}

	begins := make([]string, len(schemes))
	for i, allowed := range schemes {
		begins[i] = allowed + "://"
	}
	if found && len(scheme) <= 16 && matches(`^[a-z0-9]([a-z0-9+.-]*[a-z0-9])?$`, scheme) {
		return wrong(fix, "the URL must begin with %s, not with %s://", trouble.Or(begins), scheme)
	}
	return wrong(fix, "a URL begins with %s", trouble.Or(begins))
}

// checkBase accepts a URL to which gpuadm adds paths.
func checkBase(v, example string, schemes ...string) (string, *trouble.Error) {
	u, f := checkURL(v, example, schemes...)
	if f != nil {
		return v, f
	}
	if strings.Contains(v, "?") {
		return v, wrong("take out what begins with ?", "a query makes no sense here")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

func checkRepoURL(v string) (string, *trouble.Error) {
	return checkBase(v, "https://mirror.example/cuda/debian12/x86_64", "http", "https", "file")
}

// checkFileURL also accepts an absolute path, and makes it a URL.
func checkFileURL(v string) (string, *trouble.Error) {
	if path.IsAbs(v) {
		name, f := checkPath(v)
		return (&url.URL{Scheme: "file", Path: name}).String(), f
	}

	u, f := checkURL(v, "https://mirror.example/NVIDIA-Linux-x86_64-580.95.05.run", "http", "https", "file")
	if f != nil {
		return v, f
	}
	if u.Path == "" || strings.HasSuffix(u.Path, "/") {
		return v, wrong("write the URL of a file", "the URL is a folder's")
	}
	return u.String(), nil
}

func checkServer(v string) (string, *trouble.Error) {
	return checkBase(v, "https://HOST:6443", "https")
}

func checkProxy(v string) (string, *trouble.Error) {
	base, f := checkBase(v, "http://proxy.example:3128", "http", "https", "socks5")
	if f != nil && strings.Contains(v, "@") {
		f.Try = []string{"run a local proxy that knows the password, and name that one here"}
	}
	if f == nil && strings.Count(base, "/") > 2 {
		f = wrong("write it as http://proxy.example:3128", "a proxy's URL ends with its host and port")
	}
	return base, f
}

func checkNoProxy(v string) (string, *trouble.Error) {
	switch {
	case v == "":
		return v, wrong("take it out", "an empty entry")
	case strings.Contains(v, ","):
		return v, wrong("write each as text of its own", "%s are several", show(v))
	case strings.Contains(v, "://"):
		return v, wrong("write only the host", "a host, domain or network is not a URL")
	case !matches(`^[A-Za-z0-9.:*/_\[\]-]+$`, v):
		const fix = `write it as "10.0.0.0/8", ".cluster.local" or "host.example"`
		return v, wrong(fix, "%s is not a host, domain or network", show(v))
	}
	return v, nil
}
