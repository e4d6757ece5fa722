// SPDX-FileCopyrightText: The gpuadm authors
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

// driverModule is dnf's module that NVIDIA's driver packages for RHEL 8 and 9 are in: they are hidden until one of its
// streams is enabled, and those of the other streams then too.
const driverModule = "nvidia-driver"

// moduleFolder is where dnf keeps which streams are enabled: one file for each module, written as dnf writes it.
const moduleFolder = "/etc/dnf/modules.d"

// stream is dnf's choice of a module's stream. Its state is the stream that is enabled; "" if none is.
type stream string

// Stream wants a stream of dnf's module nvidia-driver to be enabled. Another one, enabled outside gpuadm, is not
// switched away from: that may replace or remove what is installed from it.
func Stream(name, why string) converge.Want {
	return converge.Want{Thing: stream(driverModule), Why: why, To: func(found converge.State) (converge.State, error) {
		if found != "" && found != converge.State(name) {
			return "", &trouble.Error{
				What:    fmt.Sprintf("cannot enable stream %s of dnf's module %s: %s was enabled outside gpuadm", name, driverModule, found),
				Because: []string{"dnf hides the packages of all other streams, and switching may replace what is installed from this one"},
				Try: []string{
					fmt.Sprintf("dnf module reset %s, if that stream is no longer meant; then run the same command again", driverModule),
					"or ask for a driver version of stream " + string(found),
				},
			}
		}
		return converge.State(name), nil
	}}
}

// NewStream builds the thing again from its name.
func NewStream(name string) converge.Thing { return stream(name) }

func (s stream) Ref() converge.Ref { return converge.Ref{Kind: "package-stream", Name: string(s)} }

func (s stream) Look(_ context.Context, v host.View) (converge.State, error) {
	is, err := readStream(v, string(s))
	return converge.State(is), err
}

func (s stream) Make(_ context.Context, h host.Host, to converge.State) error {
	name := s.file()
	if to == "" {
		if err := h.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return h.WriteFile(name, s.text(string(to)), host.Attr{Mode: 0o644})
}

func (s stream) text(of string) []byte {
	return fmt.Appendf(nil, "[%s]\nname=%[1]s\nstream=%s\nprofiles=\nstate=enabled\n", s, of)
}

func (s stream) file() string { return moduleFolder + "/" + string(s) + ".module" }

func readStream(v host.View, module string) (string, error) {
	data, err := v.ReadFile(stream(module).file())
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	values := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, "="); ok {
			values[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	if values["state"] == "enabled" {
		return values["stream"], nil
	}
	return "", nil
}

// streamed says whether the stream that packages are in is enabled. Until then it verifies only that the versions are there.
func (a dnf) streamed(ctx context.Context, v host.View, ask packages.Request, d rpmDatabase) error {
	if ask.Stream == "" {
		return nil
	}
	is, err := readStream(v, driverModule)
	if err != nil || is == ask.Stream {
		return err
	}
	if _, err := packages.Begin(ctx, v, ask, d.packages, solver{a.unfiltered(), d}); err != nil {
		return err
	}
	return host.Later{Until: fmt.Sprintf("stream %s of %s is enabled", ask.Stream, driverModule)}
}
