// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The checks of strings. Each returns the canonical form, or a fault. Before them, gpuadm has
// accepted defaults, refused long texts and control characters, and checked enumerations against
// the table.

func matches(pattern, text string) bool { return regexp.MustCompile(pattern).MatchString(text) }

// numbers says whether a text is one to three numbers with dots between them. The first has least
// to most digits and does not begin with 0; the others have at most rest digits.
func numbers(v string, least, most, rest int) bool {
	parts := strings.Split(v, ".")
	if len(parts) > 3 || len(parts[0]) < least || v[0] == '0' {
		return false
	}
	for _, p := range parts {
		if p == "" || len(p) > most || strings.Trim(p, "0123456789") != "" {
			return false
		}
		most = rest
	}
	return true
}

func checkDriverVersion(v string) (string, *trouble.Error) {
	// Branches have had three digits since 2016 (R367).
	if numbers(v, 3, 4, 3) {
		return v, nil
	}

	const hasVersion = `^\D{0,16}([1-9][0-9]{2,3}(?:\.[0-9]{1,3}){0,2})(?:\D|$)`
	fix := `write a version such as "580.95.05", or a branch such as "580"`
	if m := regexp.MustCompile(hasVersion).FindStringSubmatch(v); m != nil {
		fix = "did you mean " + strconv.Quote(m[1]) + "?"
	}
	return v, wrong(fix, "%s is no driver version and no branch", show(v))
}

func checkToolkitVersion(v string) (string, *trouble.Error) {
	const withSuffix = `^[1-9][0-9]{0,3}(\.[0-9]{1,4}){0,2}([-~][0-9A-Za-z.]{1,16}){0,2}$`
	if numbers(v, 1, 4, 4) || matches(withSuffix, v) {
		return v, nil
	}

	fix := `write a version such as "1.18.0", or a branch such as "1.18"`
	if m := regexp.MustCompile(`^[vV=~^ ]+([0-9]+(?:\.[0-9]+){0,2})$`).FindStringSubmatch(v); m != nil {
		fix = "did you mean " + show(m[1]) + "?"
	}
	return v, wrong(fix, "%s is no version", show(v))
}

// checkDuration accepts a duration of time.ParseDuration above zero.
func checkDuration(v string) (string, *trouble.Error) {
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return v, wrong(`write it as "90s", "10m" or "1h30m"`, "%s is no duration", show(v))
	}
	return v, nil
}

func checkPath(v string) (string, *trouble.Error) {
	switch {
	case strings.Contains(v, "://"): // not quoted: it may contain a password
		return v, wrong("write the absolute path of a file", "this is a URL, not a path")
	case strings.HasPrefix(v, "~"):
		return v, wrong("write the whole path: /root"+clip(v[1:]), "%s: only a shell knows ~", show(v))
	case strings.Contains(v, "$"):
		return v, wrong("write the whole path", "%s: variables are not replaced", show(v))
	case !path.IsAbs(v):
		whole := clip(path.Join("/etc/gpuadm", v))
		return v, wrong("write the whole path: "+whole, "%s is not an absolute path", show(v))
	case path.Clean(v) == "/" || strings.HasSuffix(v, "/"):
		return v, wrong("write the path of a file", "%s is a folder", show(v))
	}
	return path.Clean(v), nil
}

// checkURL never quotes the URL, which may contain a password.
func checkURL(v, example string, schemes ...string) (*url.URL, *trouble.Error) {
	fix := "write it as " + example
	if fault := checkScheme(v, fix, schemes); fault != nil {
		return nil, fault
	}
	u, err := url.Parse(v)
	if err != nil || strings.ContainsAny(v, " \"<>\\^`{|}") {
		return nil, wrong(fix, "this is no URL")
	}

	isFile := u.Scheme == "file"
	switch {
	case u.User != nil:
		const fix = "take it out: this file can be read by all"
		return nil, wrong(fix, "a URL must not contain a user name or password")
	case u.Fragment != "" || strings.HasSuffix(v, "#"):
		return nil, wrong("take out what begins with #", "a fragment makes no sense here")
	case isFile && (u.Host != "" || !path.IsAbs(u.Path) || path.Clean(u.Path) == "/"):
		const fix = "write it with three slashes: file:///srv/mirror"
		return nil, wrong(fix, "the URL has no absolute path of a folder")
	case !isFile && u.Hostname() == "":
		return nil, wrong(fix, "the URL has no host")
	}

	if port := u.Port(); port != "" {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return nil, wrong(fix, "the URL's port is not from 1 to 65535")
		}
	}
	return u, nil
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
	switch {
	case f != nil:
		return v, f
	case u.RawQuery != "" || u.ForceQuery:
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
	switch {
	case f != nil:
		return v, f
	case strings.HasSuffix(u.Path, "/") || u.Path == "":
		return v, wrong("write the URL of a file", "the URL is a folder's")
	case strings.ContainsAny(u.String(), " \t"):
		return v, wrong("write %20 in place of spaces", "a URL has no spaces")
	}
	return u.String(), nil
}

func checkDigest(v string) (string, *trouble.Error) {
	digest := strings.TrimPrefix(strings.ToLower(v), "sha256:")
	if len(digest) == 64 && strings.Trim(digest, "0123456789abcdef") == "" {
		return digest, nil
	}
	return v, wrong("write the 64 hex digits that sha256sum prints", "this is no SHA-256")
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
		return v, wrong("write only the host", "a host, domain or network is no URL")
	case !matches(`^[A-Za-z0-9.:*/_\[\]-]+$`, v):
		const fix = `write it as "10.0.0.0/8", ".cluster.local" or "host.example"`
		return v, wrong(fix, "%s is no host, domain or network", show(v))
	}
	return v, nil
}

func checkFingerprint(v string) (string, *trouble.Error) {
	digest, ofFile := strings.CutPrefix(v, "sha256:")
	if ofFile {
		digest, fault := checkDigest(digest)
		return "sha256:" + digest, fault
	}

	hex := strings.ToUpper(strings.ReplaceAll(v, " ", ""))
	const fix = "copy it from the output of gpg --show-keys FILE, after asking the mirror's owner for the right one"
	switch {
	case strings.Trim(hex, "0123456789ABCDEF") != "":
		return v, wrong(fix, "a fingerprint has only hex digits")
	case len(hex) != 40 && len(hex) != 64:
		return v, wrong(fix, "a fingerprint has 40 or 64 hex digits, not %d", len(hex))
	}
	return hex, nil
}

func checkHandler(v string) (string, *trouble.Error) {
	// A RuntimeClass names the handler, and Kubernetes requires a DNS label there.
	if domainLabel(v) {
		return v, nil
	}
	const fix = `write lower-case letters, digits and "-", at most 63: "nvidia"`
	return v, wrong(fix, "%s is no name for a runtime handler", show(v))
}

func checkName(v string) (string, *trouble.Error) {
	if v == "" || strings.TrimSpace(v) != v {
		return v, wrong("take the spaces out, or write a name", "%s is no name", show(v))
	}
	return v, nil
}

// checkPackage accepts the package names of dpkg and rpm: Debian Policy 5.6.1, and NVIDIA's capital
// letters.
func checkPackage(v string) (string, *trouble.Error) {
	if matches(`^[A-Za-z0-9][A-Za-z0-9+._-]+$`, v) {
		return v, nil
	}
	return v, wrong("write the name alone, without a version", "%s is no name of a package", show(v))
}

func checkProfile(v string) (string, *trouble.Error) {
	// NVML's names of GPU instance profiles, perhaps with a smaller compute instance before and
	// attributes after. Without the memory it means the GPU's own profile with so many slices.
	if matches(`^([1-9]c\.)?[1-9][0-9]?g(\.[1-9][0-9]{0,3}gb)?([+-][a-z]+(\.[a-z]+)*(,[a-z]+)*)*$`, v) {
		return v, nil
	}

	fix := `write it as nvidia-smi mig -lgip does: "1g.10gb", "1g.10gb+me"`
	lower := strings.TrimPrefix(strings.ToLower(strings.TrimSpace(v)), "mig ")
	if lower != v && lower != "" {
		if _, fault := checkProfile(lower); fault == nil {
			fix = "did you mean " + show(lower) + "?"
		}
	}
	return v, wrong(fix, "%s is no MIG profile", show(v))
}

// checkParameter returns the fault of a parameter, and says whether it is in the value. gpuadm
// writes the parameter into a line of modprobe.d, so its text may end neither that line nor its
// quotes.
func checkParameter(name, value string) (ofValue bool, fault *trouble.Error) {
	unsafe := func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }
	switch {
	case strings.ContainsAny(name, "-."):
		const fix = "write the name alone, without the module: NVreg_Name"
		return false, wrong(fix, "%s is no parameter of the module nvidia", show(name))
	case len(name) > 128 || !matches(`^[A-Za-z_][A-Za-z0-9_]*$`, name):
		const fix = "write it as modinfo -p nvidia does"
		return false, wrong(fix, "%s is no name of a module parameter", show(name))
	case strings.ContainsFunc(value, unsafe) || len(value) > 1024:
		const fix = "leave out quotes, backslashes and what is not ASCII"
		return true, wrong(fix, "modprobe cannot read the value of %s", show(name))
	}
	return false, nil
}
