// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// pinsInScratch is the file in host.Scratch with the pins for one question to apt.
const pinsInScratch = "pins"

// scratchPins are apt's options to read its pins from that file alone.
func scratchPins() []string {
	return []string{
		"-o", "Dir::Etc::Preferences=" + host.Scratch + "/" + pinsInScratch,
		"-o", "Dir::Etc::PreferencesParts=/dev/null",
	}
}

// aptReads matches the names of files that apt reads its pins from.
var aptReads = pattern.Of(`^[\w:-]+$|^[\w:.-]+\.pref$`)

// literalPins are the machine's pins behind others. In gpuadm's pins the names that a question is
// about replace patterns, since apt matches each pattern with the names of all packages, 50 ms each
// time. A pattern without an architecture fits the native ones.
func (a apt) literalPins(v host.View, first []packages.Pin, names []string) ([]byte, error) {
	return a.allPins(v, first, func(records string) string { return withNames(records, names) })
}

// patternPins are the machine's pins behind others as they are, for a question about few packages.
func (a apt) patternPins(v host.View, first []packages.Pin) ([]byte, error) {
	return a.allPins(v, first, func(records string) string { return records })
}

// allPins are the machine's pins behind others; form rewrites the records that gpuadm has written.
// Sources: the files and their order in apt_preferences(5); pkgPolicy::CreatePin in
// apt-pkg/policy.cc.
func (a apt) allPins(v host.View, first []packages.Pin, form func(records string) string) ([]byte, error) {
	names, err := v.ReadDir(a.pins)
	if err != nil && !host.NotExist(err) {
		return nil, err
	}
	files := []string{"/etc/apt/preferences"}
	for _, name := range names {
		info, err := v.Stat(a.pins + name)
		if err == nil && info.Mode.IsRegular() && aptReads().MatchString(name) {
			files = append(files, a.pins+name)
		}
	}

	texts, err := packages.ReadAll(v, files, func(file string, data []byte) []string {
		records := string(data)
		if strings.HasPrefix(path.Base(file), ourPins) {
			records = form(records)
		}
		return []string{"\n" + records + "\n"}
	})
	return []byte(form(packages.PinRecords(first)) + strings.Join(texts, "")), err
}

// withNames replaces the patterns in records of pins by the names that match, behind "-", which is
// the name of no package.
func withNames(records string, names []string) string {
	var text strings.Builder
	for line := range strings.Lines(records) {
		value, ok := strings.CutPrefix(line, "Package: ")
		if ok && value != "*\n" {
			line = "Package: - " + strings.Join(matching(strings.Fields(value), names), " ") + "\n"
		}
		text.WriteString(line)
	}

	return text.String()
}

// matching returns the names of native packages that match one of the globs.
func matching(globs, names []string) (matches []string) {
	var fits []func(name string) bool
	for _, glob := range globs {
		fits = append(fits, matcher(glob))
	}
	for _, name := range names {
		fitsOne := slices.ContainsFunc(fits, func(fit func(string) bool) bool { return fit(name) })
		if fitsOne && !strings.Contains(name, ":") {
			matches = append(matches, name)
		}
	}

	return matches
}

// matcher returns what path.Match says of a glob. It is asked for 60,000 names, and most of gpuadm's
// patterns, such as *nvidia* and libnvidia-*, have nothing special inside: those take a tenth of
// the time.
func matcher(glob string) func(name string) bool {
	inner := strings.Trim(glob, "*")
	if strings.ContainsAny(inner, `*?[\`) {
		return func(name string) bool {
			ok, err := path.Match(glob, name)
			return ok && err == nil
		}
	}

	anyStart, anyEnd := strings.HasPrefix(glob, "*"), strings.HasSuffix(glob, "*")
	return func(name string) bool {
		switch {
		case anyStart && anyEnd:
			return strings.Contains(name, inner)
		case anyStart:
			return strings.HasSuffix(name, inner)
		case anyEnd:
			return strings.HasPrefix(name, inner)
		}
		return name == inner
	}
}
