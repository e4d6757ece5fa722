// SPDX-License-Identifier: Apache-2.0

package dnf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// driverModule is dnf's module with NVIDIA's driver packages for RHEL 8 and 9: dnf hides them until
// one of its streams is enabled, and then shows only that stream's packages.
const driverModule = "nvidia-driver"

// moduleFolder is where dnf keeps which streams are enabled: one file for each module, written as
// dnf writes it.
const moduleFolder = "/etc/dnf/modules.d"

// stream is dnf's choice of a module's stream. Its state is the stream that is enabled; "" if none
// is, or off.
type stream string

// off is the state of a module after dnf module disable: dnf(8).
const off = "disabled"

// Stream wants a stream of dnf's module nvidia-driver to be enabled. It refuses to switch from
// another stream that was enabled outside gpuadm: that may replace or remove packages from it.
func Stream(name, why string) converge.Want {
	want := converge.State(name)
	return converge.Want{
		Thing: stream(driverModule),
		Why:   why,
		To: func(found converge.State) (converge.State, error) {
			if found == "" || found == want {
				return want, nil
			}
			return "", refuseStream(name, found)
		},
	}
}

func refuseStream(name string, found converge.State) error {
	changed := string(found) + " was enabled"
	if found == off {
		changed = "the module was disabled"
	}
	t := &trouble.Error{
		What: fmt.Sprintf("cannot enable stream %s of dnf's module %s: %s outside gpuadm", name, driverModule, changed),
		Try:  []string{"dnf module reset " + driverModule + ", if that is no longer meant; then run the same command again"},
	}
	if found != off {
		t.Because = []string{"dnf hides the packages of all other streams, and switching may replace what is installed from this one"}
		t.Try = append(t.Try, keepStream(name, string(found))...)
	}
	return t
}

// keepStream says what to write in the spec so that the stream that is enabled is the one asked
// for; nothing for streams that go on with each branch, such as open-dkms. NVIDIA's streams are
// BRANCH-open, BRANCH-dkms with proprietary modules, and BRANCH with precompiled ones.
// Source: NVIDIA Driver Installation Guide, "Red Hat Enterprise Linux: module streams".
func keepStream(asked, found string) []string {
	askedBranch, askedKind, _ := strings.Cut(asked, "-")
	branch, kind, _ := strings.Cut(found, "-")
	if strings.Trim(branch, "0123456789") != "" {
		return nil
	}

	var keys []string
	switch {
	case kind == "" && (askedKind != "" || branch != askedBranch):
		keys = append(keys, "an exact version of branch "+branch)
	case branch != askedBranch:
		keys = append(keys, fmt.Sprintf("version = %q", branch))
	}

	if kind != askedKind {
		keys = append(keys, kindKeys()[kind])
	}
	writes := strings.Join(keys, ", ") + " in [driver]"
	return []string{"or write " + writes + ", by which stream " + found + " stays"}
}

// kindKeys has the keys of [driver] that ask for a kind of stream.
func kindKeys() map[string]string {
	return map[string]string{
		"open": `modules = "open"`,
		"dkms": `modules = "proprietary", build = "dkms"`,
		"":     `modules = "proprietary", build = "precompiled"`,
	}
}

// NewStream builds the thing from its name, for undo.
func NewStream(name string) converge.Thing { return stream(name) }

func (s stream) Ref() converge.Ref {
	return converge.Ref{Kind: "package-stream", Name: string(s)}
}

func (s stream) Look(_ context.Context, v host.View) (converge.State, error) {
	found, err := readStream(v, string(s))
	return converge.State(found), err
}

func (s stream) Make(_ context.Context, h host.Host, to converge.State) error {
	if to != "" {
		return h.WriteFile(s.file(), s.text(string(to)), host.Attr{Mode: 0o644})
	}
	err := h.Remove(s.file())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// text is the file of the module with a stream enabled.
func (s stream) text(name string) []byte {
	return fmt.Appendf(nil, "[%s]\nname=%[1]s\nstream=%s\nprofiles=\nstate=enabled\n", s, name)
}

func (s stream) file() string { return moduleFolder + "/" + string(s) + ".module" }

func readStream(v host.View, module string) (string, error) {
	data, err := v.ReadFile(stream(module).file())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}

	values := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, "="); ok {
			values[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}

	switch values["state"] {
	case "enabled":
		return values["stream"], nil
	case off:
		return off, nil
	}

	return "", nil // no stream was chosen
}

// requireStream returns nil if the packages' stream is enabled. Until then it verifies only that
// the versions are available.
func (a dnf) requireStream(ctx context.Context, v host.View, ask packages.Request, d rpmDatabase) error {
	if ask.Stream == "" {
		return nil
	}
	found, err := readStream(v, driverModule)
	if err != nil || found == ask.Stream {
		return err
	}
	if _, err := packages.Begin(ctx, v, ask, d.packages, solver{a.unfiltered(), d}); err != nil {
		return err
	}
	return host.Later{Until: fmt.Sprintf("stream %s of %s is enabled", ask.Stream, driverModule)}
}
