// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/trouble"
)

// The checks of strings. Each returns the canonical form, or a fault. Before them, gpuadm has
// accepted defaults, refused long texts and control characters, and checked enumerations against
// the table.

func matches(pattern, text string) bool {
	return regexp.MustCompile(pattern).MatchString(text)
}

// checkDuration accepts a duration of time.ParseDuration above zero.
func checkDuration(v string) (string, *trouble.Error) {
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return v, wrong(`write it as "90s", "10m" or "1h30m"`, "%s is not a duration", show(v))
	}
	return v, nil
}

func checkPath(v string) (string, *trouble.Error) {
	switch {
	case strings.Contains(v, "://"): // not quoted: it may contain a password
		return v, wrong("write the absolute path of a file", "this is a URL, not a path")
	case strings.HasPrefix(v, "~"):
		return v, wrong("write the whole path", "%s: only a shell knows ~", show(v))
	case strings.Contains(v, "$"):
		return v, wrong("write the whole path", "%s: variables are not replaced", show(v))
	case !path.IsAbs(v):
		return v, wrong(wholePath(v), "%s is not an absolute path", show(v))
	case path.Clean(v) == "/" || strings.HasSuffix(v, "/"):
		return v, wrong("write the path of a file", "%s is a folder", show(v))
	}
	return path.Clean(v), nil
}

// wholePath advises what to write in place of a relative path. It suggests an absolute path only
// where the first word is a folder of the root: gpuadm does not know in which folder the
// operator was.
func wholePath(v string) string {
	const roots = `^(?:boot|etc|home|lib|lib64|media|mnt|opt|root|run|srv|tmp|usr|var)/`
	if matches(roots, v) {
		return "did you mean " + show("/"+v) + "?"
	}
	return "write the whole path, from / on"
}

func checkDigest(v string) (string, *trouble.Error) {
	digest := strings.TrimPrefix(strings.ToLower(v), "sha256:")
	if len(digest) == 64 && strings.Trim(digest, "0123456789abcdef") == "" {
		return digest, nil
	}
	return v, wrong("write the 64 hex digits that sha256sum prints", "this is not a SHA-256")
}

func checkFingerprint(v string) (string, *trouble.Error) {
	text, isOfFile := strings.CutPrefix(v, "sha256:")
	if isOfFile {
		digest, fault := checkDigest(text)
		return "sha256:" + digest, fault
	}

	const fix = "copy it from the output of gpg --show-keys FILE, after asking the mirror's owner for the right one"
	hex := strings.ToUpper(strings.ReplaceAll(v, " ", ""))
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
	return v, wrong(fix, "%s is not a name for a runtime handler", show(v))
}

func checkName(v string) (string, *trouble.Error) {
	if v == "" || strings.TrimSpace(v) != v {
		return v, wrong("take the spaces out, or write a name", "%s is not a name", show(v))
	}
	return v, nil
}

// checkUnit accepts units that systemd can stop and start again: systemd.unit(5), "unit names". It
// refuses gpuadm's own, since gpuadm would stop itself.
func checkUnit(v string) (string, *trouble.Error) {
	if !matches(`^[A-Za-z0-9:_.\\@-]+\.(service|socket|timer|path|target|slice|scope)$`, v) {
		return v, wrong(`write the whole name: "my-exporter.service"`, "%s is not a unit of systemd", show(v))
	}
	if strings.HasPrefix(v, "gpuadm") {
		return v, wrong("take it out", "%s is gpuadm's own", show(v))
	}
	return v, nil
}

// checkPackage accepts the package names of dpkg and rpm: Debian Policy 5.6.1, and NVIDIA's capital
// letters.
func checkPackage(v string) (string, *trouble.Error) {
	if matches(`^[A-Za-z0-9][A-Za-z0-9+._-]+$`, v) {
		return v, nil
	}
	return v, wrong("write the name alone, without a version", "%s is not the name of a package", show(v))
}

func checkProfile(v string) (string, *trouble.Error) {
	if isProfile(v) {
		return v, nil
	}

	fix := `write it as nvidia-smi mig -lgip does: "1g.10gb", "1g.10gb+me"`
	plain := strings.ToLower(strings.TrimSpace(v))
	plain = strings.TrimPrefix(plain, "nvidia.com/")
	plain = strings.TrimLeft(strings.TrimPrefix(plain, "mig"), " -")
	for _, likely := range []string{plain, plain + "b", plain + "gb"} { // 1g.10g, 1g.10
		if isProfile(likely) {
			fix = "did you mean " + show(likely) + "?"
			break
		}
	}

	return v, wrong(fix, "%s is not a MIG profile", show(v))
}

// isProfile reports whether a text is one of NVML's names of GPU instance profiles, perhaps with a
// smaller compute instance before it and attributes after it. A name without a memory size means
// the GPU's own profile with that many slices.
func isProfile(v string) bool {
	return matches(`^([1-9]c\.)?[1-9][0-9]?g(\.[1-9][0-9]{0,3}gb)?([+-][a-z]+(\.[a-z]+)*(,[a-z]+)*)*$`, v)
}

// checkParameter returns the fault of a parameter, and reports whether the fault is in the value.
// gpuadm writes the parameter into a line of modprobe.d, so its text must end neither that line nor
// its quotes.
func checkParameter(name, value string) (ofValue bool, fault *trouble.Error) {
	isUnsafe := func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' }
	switch {
	case strings.ContainsAny(name, "-."):
		const fix = "write the name alone, without the module: NVreg_Name"
		return false, wrong(fix, "%s is not a parameter of the module nvidia", show(name))
	case len(name) > 128 || !matches(`^[A-Za-z_][A-Za-z0-9_]*$`, name):
		const fix = "write it as modinfo -p nvidia does"
		return false, wrong(fix, "%s is not the name of a module parameter", show(name))
	case strings.ContainsFunc(value, isUnsafe) || len(value) > 1024:
		const fix = "leave out quotes, backslashes and what is not ASCII"
		return true, wrong(fix, "modprobe cannot read the value of %s", show(name))
	}

	return false, nil
}
