// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// HowOf says what stage runtime does with an engine's configuration: by who writes the file, unless
// the spec says who. A file that its writer makes again at each start or boot stays the writer's.
func HowOf(r spec.Runtime, e facts.Engine) platform.How {
	writer := platform.EngineOf(e.Owner)
	switch {
	case writer.Fixed || writer.Again != "" && r.Owner == "gpuadm":
		return writer.How
	case r.Owner == "gpuadm":
		return platform.Edits
	case r.Owner == "other":
		return platform.Entry
	}

	return writer.How
}

// CheckOwner refuses to own a file that another program makes again at each boot: an edit would be
// gone then.
func CheckOwner(r spec.Runtime, e facts.Engine) error {
	again := platform.EngineOf(e.Owner).Again
	if r.Owner != "gpuadm" || again == "" {
		return nil
	}
	return &trouble.Error{
		What: "cannot own " + e.Config + ": " + again + " writes it again at each boot",
		Try:  []string{`drop owner = "gpuadm" from [runtime], and let a device plugin with CDI give GPUs to pods`},
	}
}

// MayEdit says whether gpuadm edits an engine's configuration now. A platform whose scripts have
// not ended writes the file yet.
func MayEdit(r spec.Runtime, f facts.Facts, e facts.Engine) bool {
	switch HowOf(r, e) {
	case platform.Edits, platform.Rooted:
		return true
	case platform.After:
		return f.Files[platform.WriterOf(e.Owner).Join.Done] != nil
	}
	return false
}

// Verify wants the handler in a configuration that another owner writes, and edits nothing. missing
// says what the configuration lacks, "" if nothing.
func Verify(e facts.Engine, h Handler, missing string) converge.Want {
	owner := e.Owner
	if owner == "" {
		owner = "another program" // the spec says so
	}
	because := ""
	if e.Why != "" {
		because = " (" + e.Why + ")"
	}

	look := func(context.Context, host.View) (string, error) {
		if missing == "" {
			return "", nil
		}
		return fmt.Sprintf("cannot use the handler %s: %s, and %s writes that file", h.Name, missing, owner), nil
	}

	want := things.Check(fmt.Sprintf("handler %s in %s", h.Name, e.Config), look,
		fmt.Sprintf("%s writes %s%s, so gpuadm verifies and does not edit", owner, e.Config, because),
		fmt.Sprintf("let %s write it, or set owner = \"gpuadm\" in [runtime] if it no longer does", owner))
	want.Releases = true
	return want
}
