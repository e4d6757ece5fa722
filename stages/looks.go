// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
)

// A look is how gpuadm looks at what the values of some keys name outside the spec. keys.tsv has
// for each key the name of its look. docs/looks.md is made from this table.
type look struct {
	names string // as keys.tsv has it
	sees  string // what a plan finds out, in words; "" for nothing
	until string // which moment shows the rest; "" where a plan shows all

	// One of the three says who looks: the function, the stages that plan with the value, or
	// another look that judges both together.
	at   func(context.Context, question) []finding
	by   []string
	with string

	// uses says whether a pending change uses the value: at looks at no other.
	uses func(converge.Line, question) bool
}

// A question is what is asked of a look.
type question struct {
	view  host.View
	spec  spec.Spec
	facts facts.Facts
	named spec.Named
}

// A finding is what a look has found of one value: nil for nothing wrong, or a host.Later.
type finding struct {
	value string
	err   error
}

// The moments that show what a plan cannot see.
const (
	whenListsAreRead = "when the package lists are read"
	whenDownloaded   = "when it is downloaded"
	whenReached      = "when gpuadm first reaches the network through it"
	whenNodeJoins    = "when the node joins"
	whenIMEXStarts   = "when IMEX starts"
	whenInstalled    = "when the driver's module is installed"
	atFirstBoot      = "the first boot, for an image"
)

// looks is the table of all looks.
func looks() []look {
	return []look{
		{
			names: "version",
			sees:  "whether such GPUs can have it",
			by:    []string{"packages"},
			until: whenListsAreRead,
		},
		{
			names: "packages",
			sees:  "which of them are installed",
			by:    []string{"packages"},
			until: whenListsAreRead,
		},
		{
			names: "packages-left-out",
			sees:  "whether gpuadm would ask for them",
			by:    []string{"packages"},
		},
		{
			names: "gpus",
			sees:  "whether the machine has them",
			by:    []string{"preflight", "mig"},
		},
		{
			names: "profiles",
			sees:  "whether the GPUs have them, and have room",
			by:    []string{"mig"},
		},

		{
			names: "key",
			sees:  "whether the file holds exactly the key of the fingerprint",
			at:    each(keyFile),
			uses:  fetchesKey,
		},
		{
			names: "fingerprint",
			sees:  "whether the key has it",
			with:  "key",
		},
		{
			names: "repository",
			sees:  "of a file:// URL whether the folder exists",
			until: whenListsAreRead,
			at:    each(repository),
			uses:  ofKinds("package-lists"),
		},
		{
			names: "runfile",
			sees:  "of a file whether it exists, and has the digest",
			until: whenDownloaded,
			at:    each(installer),
			uses:  ofKinds("runfile"),
		},
		{
			names: "digest",
			sees:  "of a file whether it has the digest",
			until: whenDownloaded,
			with:  "runfile",
		},
		{
			names: "parameters",
			sees:  "whether an installed module of this version has them, else the catalog",
			until: whenInstalled,
			at:    each(parameter),
			uses:  inStages("packages", "modules"),
		},
		{
			names: "licence",
			sees:  "whether the file exists",
			until: atFirstBoot,
			at:    each(readable),
			uses:  inStages("services"),
		},
		{
			names: "peers",
			until: whenIMEXStarts,
			at:    later(whenIMEXStarts),
			uses:  inStages("services"),
		},

		{
			names: "runtimes",
			sees:  "whether one of the programs can run",
			until: atFirstBoot,
			at:    runtimes,
			uses:  inStages("toolkit"),
		},
		{
			names: "engine-config",
			sees:  "whether it is a file, and which program reads it",
			at:    each(fileOrNothing),
			by:    []string{"runtime"},
			uses:  inStages("runtime"),
		},
		{
			names: "program",
			sees:  "whether it can run",
			until: atFirstBoot,
			at:    each(program),
			uses:  inStages("runtime"),
		},

		{
			names: "layouts",
			sees:  "whether the file has layouts in mig-parted's format",
			until: atFirstBoot,
			at:    each(layouts),
			uses:  inStages("mig"),
		},
		{
			names: "layout",
			sees:  "whether the file has the layout, and the GPUs have room",
			until: atFirstBoot,
			with:  "layouts",
		},

		{
			names: "units",
			sees:  "whether the machine has them, unmasked",
			until: atFirstBoot,
			at:    each(unitThere),
			uses:  inStages("mig"),
		},

		{
			names: "kubeconfig",
			sees:  "whether the file is a kubeconfig that names a server",
			until: atFirstBoot,
			at:    each(kubeconfig),
			uses:  inStages("guard", "node", "joined", "ready"),
		},
		{
			names: "kubelet-config",
			sees:  "whether the file is a KubeletConfiguration",
			until: atFirstBoot,
			at:    each(kubeletConfig),
			by:    []string{"join"},
			uses:  inStages("join"),
		},
		{
			names: "cluster-certificates",
			sees:  "whether the file holds certificates in PEM",
			until: atFirstBoot,
			at:    each(certificates),
			uses:  inStages("join"),
		},
		{
			names: "certificates",
			sees:  "whether the file holds certificates in PEM",
			at:    each(certificates),
			uses:  reachesNetwork,
		},
		{
			names: "api-server",
			until: whenNodeJoins,
			at:    later(whenNodeJoins),
			uses:  inStages("join"),
		},
		{
			names: "cluster",
			until: whenNodeJoins,
			at:    later(whenNodeJoins),
			uses:  inStages("join"),
		},
		{
			names: "proxy",
			until: whenReached,
			at:    later(whenReached),
			uses:  reachesNetwork,
		},
	}
}

// LooksPage is the table of docs/looks.md: what gpuadm finds out about each key, and when.
func LooksPage() string {
	var page strings.Builder
	page.WriteString("| key | a plan, and validate on the machine, see | decided later |\n|---|---|---|\n")
	for _, k := range spec.Keys() {
		l := lookOf(k)
		if l.names != "" {
			fmt.Fprintf(&page, "| `%s` | %s | %s |\n", k, cmp.Or(l.sees, "nothing"), l.until)
		}
	}

	return page.String()
}

// Named looks at the values of a spec that name something outside it and that a pending
// change uses.
func Named(
	ctx context.Context, v host.View, s spec.Spec, f facts.Facts, pending []converge.Line,
) []converge.Seen {
	return seen(ctx, v, s, f, func(l look, q question) (string, bool) {
		user := slices.IndexFunc(pending, func(c converge.Line) bool { return l.uses(c, q) })
		if user < 0 {
			return "", false
		}
		return pending[user].Stage, true
	})
}

// NamedNow is Named for a boot, and for the gate that kubelet asks: it leaves out what only changes
// use that wait, such as those to the Node object. A later run makes them, and looks then.
func NamedNow(
	ctx context.Context, v host.View, s spec.Spec, f facts.Facts, pending []converge.Line,
) []converge.Seen {
	waits := func(l converge.Line) bool { return l.Deferred != "" }
	return Named(ctx, v, s, f, slices.DeleteFunc(slices.Clone(pending), waits))
}

// NamedAll looks at all values of a spec that name something outside it, for validate.
func NamedAll(ctx context.Context, v host.View, s spec.Spec, f facts.Facts) []converge.Seen {
	return seen(ctx, v, s, f, func(look, question) (string, bool) { return "", true })
}

// seen looks at the values that some stage uses.
func seen(
	ctx context.Context, v host.View, s spec.Spec, f facts.Facts,
	used func(look, question) (stage string, is bool),
) (all []converge.Seen) {
	for _, named := range s.Named() {
		l := lookOf(named.Key)
		q := question{v, s, f, named}
		if l.at == nil {
			continue
		}
		stage, is := used(l, q)
		if !is {
			continue
		}
		for _, found := range l.at(ctx, q) {
			all = append(all, converge.Seen{
				Key:   named.String(),
				Value: found.value,
				Stage: stage,
				Err:   found.err,
			})
		}
	}
	return all
}

// lookOf returns the look of a key; the zero look for a key that names nothing.
func lookOf(k spec.Key) look {
	all := looks()
	i := slices.IndexFunc(all, func(l look) bool { return l.names == k.Names })
	if i < 0 {
		return look{}
	}
	return all[i]
}

// each looks at each value alone.
func each(at func(context.Context, question, string) error) func(context.Context, question) []finding {
	return func(ctx context.Context, q question) (all []finding) {
		for _, value := range q.named.Values {
			all = append(all, finding{value, at(ctx, q, value)})
		}
		return all
	}
}

// later is the look at what only a later moment shows.
func later(until string) func(context.Context, question) []finding {
	return each(func(context.Context, question, string) error {
		return host.Later{Until: until}
	})
}

func ofKinds(names ...string) func(converge.Line, question) bool {
	return func(c converge.Line, _ question) bool { return slices.Contains(names, c.Kind) }
}

func inStages(names ...string) func(converge.Line, question) bool {
	return func(c converge.Line, _ question) bool { return slices.Contains(names, c.Stage) }
}

// fetchesKey says whether a change gets a key from the value: its form names the source.
func fetchesKey(c converge.Line, q question) bool {
	if c.Kind != "key" {
		return false
	}
	return slices.ContainsFunc(q.named.Values, func(name string) bool {
		return c.Form == name || strings.HasSuffix(c.Form, " "+name)
	})
}

// reachesNetwork says whether a change gets something over the network.
func reachesNetwork(c converge.Line, _ question) bool {
	switch c.Kind {
	case "package", "package-lists", "package-key", "package-stream", "runfile":
		return true
	case "key":
		return !path.IsAbs(c.Form)
	}
	return c.Stage == "join"
}
