// SPDX-License-Identifier: Apache-2.0

// Package docker edits Docker's daemon.json, has Docker itself validate the result, and reloads
// Docker where a restart is not needed.
package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/jsonedit"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// Form is what the journal calls the form of Docker's daemon.json, whose edits TakeOut takes out.
const Form = "docker"

// Docker's keys, in https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file and
// daemon/config of https://github.com/moby/moby at v20.10.24 and v28.5.2.
const (
	runtimesKey = "runtimes"
	defaultKey  = "default-runtime"
	featuresKey = "features"
)

// takesCDI says whether this Docker has CDI (25.0 and later), and whether CDI is on unless
// features.cdi is false (28.2 and later).
// Sources: commits 7ec9561a, d22c775e (v25.0.0) and 4cecce03 (v28.2.0) of
// https://github.com/moby/moby; https://docs.docker.com/engine/release-notes/.
func takesCDI(version string) (has, byDefault bool) {
	return isSince(version, 25, 0), isSince(version, 28, 2)
}

// isSince says whether a Docker has this version or a newer one. An unknown version counts as
// older.
func isSince(version string, major, minor int) bool {
	_, _, known := engine.ParseVersion(version)
	return known && !engine.IsBefore(version, major, minor)
}

// setting is a value that daemon.json should have.
type setting struct {
	text string // as JSON
	path []string
}

// Edit changes found, the bytes of daemon.json (nil: not there), so that Docker has the runtime. A
// runtime of this name, or a features.cdi, that is in the file already stays.
func Edit(file, version string, h engine.Handler, found []byte) ([]byte, error) {
	doc, err := jsonedit.Parse(found)
	if err != nil {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot edit %s: it is not JSON that Docker reads: %v", file, err),
			Try:  []string{"fix it; Docker refuses it too"},
			Err:  err,
		}
	}

	if h.Name == "runc" {
		return nil, &trouble.Error{
			What: "cannot configure Docker: it keeps the name runc for its own runtime",
			Try:  []string{"give the handler another name in [runtime]"},
		}
	}

	edited := found
	for _, s := range settings(doc, version, h) {
		edited, err = set(edited, s)
		if err != nil {
			return nil, &trouble.Error{
				What: fmt.Sprintf("cannot edit %s: %v", file, err),
				Try:  []string{"fix it; Docker refuses it too"},
				Err:  err,
			}
		}
	}

	return edited, nil
}

// settings are the values that the file should have for a handler.
func settings(doc *jsonedit.Doc, version string, h engine.Handler) []setting {
	var list []setting
	program, _ := programOf(doc, h.Name)
	hasOther := h.Stated() && program != h.Binary
	if program == "" || hasOther {
		list = append(list, setting{jsonedit.Quote(h.Binary), []string{runtimesKey, h.Name, "path"}})
	}
	if h.Default {
		list = append(list, setting{jsonedit.Quote(h.Name), []string{defaultKey}})
	}

	takes, byDefault := takesCDI(version)
	isSet := byDefault || doc.Text(featuresKey, "cdi") != nil
	if h.CDI && takes && !isSet {
		list = append(list, setting{"true", []string{featuresKey, "cdi"}})
	}
	return list
}

// set sets one value in a file.
func set(found []byte, s setting) ([]byte, error) {
	doc, err := jsonedit.Parse(found)
	if err != nil {
		return nil, err
	}
	return doc.Set(s.text, s.path...)
}

// programOf is the program of a runtime, or its shim; "" if there is no such runtime. Docker reads
// the fields of a runtime in any case, as encoding/json does.
func programOf(doc *jsonedit.Doc, name string) (program string, shim bool) {
	var entry struct {
		Path string `json:"path"`
		Type string `json:"runtimeType"`
	}
	if json.Unmarshal(doc.Text(runtimesKey, name), &entry) != nil {
		return "", false
	}
	if entry.Path == "" {
		return entry.Type, entry.Type != ""
	}
	return entry.Path, false
}

// TakeOut takes gpuadm's edit of daemon.json (before → after) out of found, which was changed
// outside gpuadm since, key by key. A runtime that gpuadm added stays as a whole if another process
// has added keys to it, since half a runtime is worse than one too many; and if another process has
// made it the default: Docker does not start without it.
func TakeOut(before, after, found []byte) (rest []byte, left []string, err error) {
	edited, err := jsonedit.Parse(after)
	if err != nil {
		return nil, nil, err
	}
	return jsonedit.TakeOut(before, after, found, func(is *jsonedit.Doc, c jsonedit.Change) string {
		isAdded := len(c.Path) >= 2 && c.Path[0] == runtimesKey && c.Old == nil
		if !isAdded {
			return ""
		}
		return whyStays(edited, is, c.Path[:2])
	})
}

// whyStays says why a runtime that gpuadm added stays, "" if it need not. edited is the file after
// gpuadm's edit, found the present one.
func whyStays(edited, found *jsonedit.Doc, entry []string) string {
	name := strings.Join(entry, ".")
	for _, key := range found.Keys(entry...) {
		if !slices.Contains(edited.Keys(entry...), key) {
			return fmt.Sprintf("%s is there, with %s", name, key)
		}
	}

	byDefault := string(found.Text(defaultKey))
	if byDefault == jsonedit.Quote(entry[1]) && string(edited.Text(defaultKey)) != byDefault {
		return fmt.Sprintf("%s is there, as the default runtime that was set outside gpuadm", name)
	}
	return ""
}

// missing says what a daemon.json that others write lacks of a runtime, "" if nothing.
func missing(e facts.Engine, h engine.Handler) string {
	doc, err := jsonedit.Parse(e.Files[0].Data)
	if err != nil {
		return e.Config + " cannot have it: " + err.Error()
	}
	if program, _ := programOf(doc, h.Name); program == "" {
		return e.Config + " does not have it"
	}
	if h.Default && string(doc.Text(defaultKey)) != jsonedit.Quote(h.Name) {
		return e.Config + " has another default runtime"
	}
	return ""
}

// Wants edits daemon.json, and wants Docker to run with it.
func Wants(s spec.Spec, f facts.Facts, e facts.Engine) ([]converge.Want, error) {
	h := engine.PlainHandler(s.Runtime)
	if err := engine.CheckOwner(s.Runtime, e); err != nil {
		return nil, err
	}
	if !engine.MayEdit(s.Runtime, f, e) {
		return []converge.Want{engine.Verify(e, h, missing(e, h))}, nil
	}

	var wants []converge.Want
	found := e.Files[0].Data
	program := h.Binary
	if other := otherProgram(found, h); other != "" {
		program = other
		wants = append(wants, engine.OwnersProgram(h.Name, e.Config, other, ""))
	}
	h, works := engine.DefaultRuns(s, f, h, program, missing(e, h) != "")
	wants = append(wants, works...)

	edit := func(found []byte) ([]byte, error) { return Edit(e.Config, e.Version, h, found) }
	edited, err := edit(found)
	if err != nil {
		return nil, err
	}
	validate := func(ctx context.Context, v host.View, before, after []byte) error {
		return validateEdit(ctx, v, e, before, after)
	}
	file := things.NewFile(e.Config, TakeOut).Formed(Form).Validated(validate)

	wants = append(wants, things.Folders(path.Dir(e.Config), "holds the engine's configuration")...)
	return append(wants,
		things.Edited(file, edit, h.Why()),
		Restart(e, edited, "Docker runs with its configuration"),
	), nil
}

// otherProgram is the program of an entry for the handler that another process wrote, "" if there
// is none: a shim is not a program.
func otherProgram(found []byte, h engine.Handler) string {
	doc, err := jsonedit.Parse(found)
	if err != nil {
		return ""
	}
	program, shim := programOf(doc, h.Name)
	if shim || program == h.Binary || h.Stated() {
		return ""
	}
	return program
}

// Notes say what an operator may want to know of Docker's configuration. Docker gives GPUs by --gpus
// without CDI, through the toolkit's hook: daemon/nvidia_linux.go of https://github.com/moby/moby.
func Notes(e facts.Engine, k facts.Kubelet, h engine.Handler) []string {
	var notes []string
	if k.Endpoint != "" && !k.Uses(e) {
		notes = append(notes,
			fmt.Sprintf("kubelet talks to %s, not to Docker: this is for Docker's own containers, and not for pods", k.Endpoint))
	}

	has, _ := takesCDI(e.Version)
	doc, err := jsonedit.Parse(e.Files[0].Data)
	without := fmt.Sprintf("containers get GPUs by --gpus or --runtime %s, and not by --device", h.Name)
	switch {
	case !h.CDI || err != nil:
	case !has && e.Version != "":
		notes = append(notes,
			fmt.Sprintf("Docker %s has no CDI, which came with 25.0: %s", e.Version, without))
	case string(doc.Text(featuresKey, "cdi")) == "false":
		notes = append(notes,
			fmt.Sprintf("%s switches CDI off by features.cdi, and keeps it off: %s", e.Config, without))
	}

	return notes
}

// Configured reads Docker's daemon.json.
func Configured(e facts.Engine) engine.Configured {
	if len(e.Files) == 0 || len(e.Files[0].Data) == 0 {
		return engine.Configured{}
	}
	_, err := jsonedit.Parse(e.Files[0].Data)
	return engine.Configured{Unreadable: err}
}

// HasCDI says whether Docker gives containers CDI devices, as its file says.
func HasCDI(e facts.Engine) bool {
	has, on := takesCDI(e.Version)
	var config struct {
		Features map[string]bool `json:"features"`
	}
	if len(e.Files) > 0 {
		_ = json.Unmarshal(e.Files[0].Data, &config) // a broken file states nothing
	}
	if stated, isStated := config.Features["cdi"]; isStated {
		on = stated
	}
	return has && on
}

// CDIFolders are the folders in which Docker looks for CDI specs: those of its options or of its
// file, since it refuses both; nil where neither states them.
func CDIFolders(e facts.Engine) []string {
	var config struct {
		Folders []string `json:"cdi-spec-dirs"`
	}
	if len(e.Files) > 0 {
		_ = json.Unmarshal(e.Files[0].Data, &config) // a broken file states none
	}
	return append(facts.Options(e.Args, "cdi-spec-dir"), config.Folders...)
}
