// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// A strategy is how gpuadm has a handler in a configuration.
type strategy struct {
	// handler says which handler "auto" is, by the programs that are installed; "" = none is
	// needed.
	handler func(e facts.Engine, programs []string) string
	wants   func(spec.Spec, facts.Facts, facts.Engine, engine.Handler) ([]converge.Want, error)
}

// strategies has a strategy for each way in which the configurations of internal/platform are
// written.
func strategies() map[platform.How]strategy {
	return map[platform.How]strategy{
		platform.Edits:  {handlerNvidia, wantsEdit},
		platform.Entry:  {handlerFromFile, wantsChecked},
		platform.NoNeed: {handlerNone, wantsNothing},
		platform.After:  {handlerOfPlatform, wantsAfter},
		platform.Boot:   {handlerFromFile, wantsBoot},
		platform.Render: {handlerNvidia, wantsRancher},
		platform.Folder: {handlerNvidia, wantsK0s},
		platform.Rooted: {handlerNvidia, wantsRooted},
	}
}

// strategyOf is the strategy for an engine's configuration.
func strategyOf(s spec.Spec, e facts.Engine) strategy {
	return strategies()[engine.HowOf(s.Runtime, e)]
}

// wantsNothing leaves the configuration alone, unless the spec names a handler.
func wantsNothing(_ spec.Spec, _ facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	if h.Name != "" {
		return []converge.Want{engine.Verify(e, h, missing(e, h))}, nil
	}

	want := things.Check(e.Config+" is "+e.Owner+"'s", noProblem,
		e.Owner+" needs no handler: its device plugin mounts the driver's files into containers")
	want.Releases = true
	return []converge.Want{want}, nil
}

func noProblem(context.Context, host.View) (string, error) { return "", nil }

// wantsChecked verifies the handler, and edits nothing.
func wantsChecked(_ spec.Spec, _ facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	return []converge.Want{engine.Verify(e, h, missing(e, h))}, nil
}

// wantsAfter edits the file in place once the platform's scripts have ended: they write it once,
// and not again. The platform's own handler stays as it is.
func wantsAfter(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	if !engine.MayEdit(s.Runtime, f, e) {
		return wantsChecked(s, f, e, h)
	}
	h.Owned = h.Name == platform.EngineOf(e.Owner).Handler
	return wantsEdit(s, f, e, h)
}

// wantsRooted edits the template of which the owner's script makes the configuration, so that the
// next bootstrap has the handler, and the configuration, once the script has made it.
func wantsRooted(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	template := platform.EngineOf(e.Owner).Template
	data, hasTemplate := f.Files[template]
	if !hasTemplate {
		return wantsEdit(s, f, e, h)
	}

	before, err := editedTemplate(s, f, e, h, facts.File{Path: template, Data: data})
	if err != nil {
		return nil, err
	}
	wants := []converge.Want{before}
	isMade := treeOf(e).Root.Data != nil
	if !isMade {
		return wants, nil
	}
	edits, err := wantsEdit(s, f, e, h)
	return append(wants, edits...), err
}

// editedTemplate edits the template as if it were the engine's configuration.
func editedTemplate(
	s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler, template facts.File,
) (converge.Want, error) {
	made := e
	made.Config = template.Path
	made.Files = []facts.File{template}
	c, err := readEngine(made)
	if err != nil {
		return converge.Want{}, err
	}

	handler, _ := asDefault(s, f, c, h)
	tree := treeOf(made)
	edit := func(found []byte) ([]byte, error) {
		return Edit(tree, Daemon{Version: e.Version}, handler, template.Path, found)
	}
	file := things.NewFile(template.Path, engine.TakeOutOf(tree.Texts)).Formed(engine.FormTOML)
	return things.Edited(file, edit, e.Owner+" makes "+e.Config+" of it at each bootstrap"), nil
}

// wantsBoot verifies a file that its owner writes after gpuadm in a boot: the owner waits for
// gpuadm, so gpuadm does not wait for a handler that is missing here. Stage join tells the owner to
// write it, and stage ready asks the engine whether it has the handler, before pods come.
func wantsBoot(s spec.Spec, _ facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	lack := missing(e, h)
	want := engine.Verify(e, h, lack)
	joins := s.Join.Method == platform.WriterOf(e.Owner).Join.Method || s.Join.Method == "auto"
	if joins && lack != "" {
		want.Thing = things.Check(e.Config+" is "+e.Owner+"'s", noProblem, "").Thing
		want.Why = e.Owner + " writes it when it runs next, and the handler into it"
	}
	return []converge.Want{want}, nil
}
