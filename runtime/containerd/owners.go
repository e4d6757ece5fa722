// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"path"
	"slices"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/platform"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// An owner is a program or a cloud that writes containerd's configuration.
type owner struct {
	handler func(facts.Engine, []string) string // which handler "auto" is, by the programs that are installed; "" = none is needed
	wants   func(spec.Spec, facts.Facts, facts.Engine, engine.Handler) ([]converge.Want, error)
}

// owners has what the runtime stage wants for each owner of a configuration, by the owner's name in
// facts. Nothing else in this package depends on the owner.
func owners() map[string]owner {
	return map[string]owner{
		"":             {itsNvidia, edits},     // the file is edited, and the daemon restarted
		"k3s":          {itsNvidia, rancher},   // their unit is restarted, which writes the handler; else a drop-in
		"rke2":         {itsNvidia, rancher},   //
		"k0s":          {itsNvidia, onK0s},     // its folder of additions has the handler, and it starts the daemon again
		"gke":          {itsNone, none},        // Google's device plugin mounts the driver's files into containers
		"cos":          {itsNone, none},        //
		"nodeadm":      {itsEntry, byNodeadm},  // nodeadm writes the file after gpuadm in a boot
		"bottlerocket": {itsEntry, verifyOnly}, // the file must have a handler that runs a program that is there
		"talos":        {itsEntry, verifyOnly}, //
		"other":        {itsEntry, verifyOnly}, // the spec says so
	}
}

// ownerOf is the owner of an engine's configuration. The spec can say that there is none, but for
// the file that K3s and RKE2 generate at each start, and that of k0s.
func ownerOf(s spec.Spec, e facts.Engine) owner {
	all := owners()
	if p := platform.WriterOf(e.Owner); p.Engine.How == platform.After {
		all[e.Owner] = owner{entryOf(p), afterIt(p)}
	}
	switch o, known := all[e.Owner]; {
	case e.Owner == "k3s" || e.Owner == "rke2" || e.Owner == "k0s":
		return o
	case s.Runtime.Owner == "gpuadm" && e.Owner == "gke":
		return owner{itsNone, rewritten}
	case s.Runtime.Owner == "gpuadm":
		return all[""]
	case s.Runtime.Owner == "other" || !known:
		return all["other"]
	default:
		return o
	}
}

// HandlerFor is the handler that the spec asks for on this machine. Its name is "" where the
// machine needs none.
func HandlerFor(s spec.Spec, f facts.Facts, e facts.Engine) engine.Handler {
	h := engine.Handler{Name: s.Runtime.Handler, Binary: engine.Binary, Default: s.Runtime.SetAsDefault, CDI: s.Runtime.CDI, Overrides: s.Runtime.CDIStated, Programs: slices.Clone(f.Programs), Systemd: f.Kubelet.CgroupDriver == "systemd"}
	if !s.Has("toolkit") && !slices.Contains(f.Programs, engine.Binary) && slices.Contains(f.Programs, facts.RuntimeOfOperator) {
		h.Binary = facts.RuntimeOfOperator
	}
	if h.Name == "auto" {
		h.Name = ownerOf(s, e).handler(e, f.Programs)
	}
	return h
}

func itsNvidia(facts.Engine, []string) string { return "nvidia" }
func itsNone(facts.Engine, []string) string   { return "" }

// itsEntry is the name of the owner's entry that runs an NVIDIA runtime that is there: AKS calls it
// nvidia-container-runtime, and makes it the default (Azure/AgentBaker, pkg/agent/baker.go and
// aks-node-controller/parser/templates/containerd.toml.gtpl), but for images for GB200, where it is
// nvidia (the same, parts/linux/cloud-init/artifacts/ubuntu/gb/containerd-nvidia.toml).
func itsEntry(e facts.Engine, programs []string) string {
	c, err := asRead(e)
	if err != nil {
		return "nvidia"
	}
	runtimes := toml.Sub(c.cri, "containerd", "runtimes")
	names := []string{c.defaultName(), "nvidia"}
	for _, p := range toml.Sorted(runtimes) {
		names = append(names, p.Key)
	}
	for _, name := range names {
		if entry, ok := runtimes[name].(map[string]any); ok && slices.Contains(programs, programOf(entry)) {
			return name
		}
	}
	return "nvidia"
}

func none(_ spec.Spec, _ facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	if h.Name != "" {
		return []converge.Want{engine.Verify(e, h, lacking(e, h))}, nil
	}
	right := func(context.Context, host.View) (string, error) { return "", nil }
	w := things.Check(e.Config+" is "+e.Owner+"'s", right, e.Owner+" needs no handler: its device plugin mounts the driver's files into containers")
	w.Releases = true
	return []converge.Want{w}, nil
}

func verifyOnly(_ spec.Spec, _ facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	return []converge.Want{engine.Verify(e, h, lacking(e, h))}, nil
}

// entryOf is the platform's own handler, if its file has the entry and its program is installed.
// Which handler is the default does not matter: it may be gpuadm's, or another one.
func entryOf(p platform.Platform) func(facts.Engine, []string) string {
	return func(e facts.Engine, programs []string) string {
		if c, err := asRead(e); err == nil {
			entry, _ := toml.Sub(c.cri, "containerd", "runtimes")[p.Engine.Handler].(map[string]any)
			if slices.Contains(programs, programOf(entry)) {
				return p.Engine.Handler
			}
		}
		return "nvidia"
	}
}

// afterIt edits the file in place once the platform's scripts have ended: they write it once, and
// not again. The platform's own handler stays as it is.
func afterIt(p platform.Platform) func(spec.Spec, facts.Facts, facts.Engine, engine.Handler) ([]converge.Want, error) {
	return func(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
		if f.Files[p.Join.Done] == nil {
			return verifyOnly(s, f, e, h)
		}
		h.Owned = h.Name == p.Engine.Handler
		return edits(s, f, e, h)
	}
}

// rewritten refuses to own a file that configure-helper makes again at each boot: an edit would be
// gone then.
// Source: kubernetes/kubernetes, cluster/gce/gci/node.yaml and configure-helper.sh;
// https://github.com/cilium/cilium/pull/18486.
func rewritten(_ spec.Spec, _ facts.Facts, e facts.Engine, _ engine.Handler) ([]converge.Want, error) {
	return nil, &trouble.Error{
		What: "cannot own " + e.Config + ": GKE's configure-helper writes it again at each boot",
		Try:  []string{`drop owner = "gpuadm" from [runtime], and let a device plugin with CDI give GPUs to pods`},
	}
}

// byNodeadm verifies a file that nodeadm writes. In a boot nodeadm runs after gpuadm and waits for
// it, so gpuadm does not wait for a handler that is missing here. Stage join tells nodeadm to write
// it, and stage ready asks the engine whether it has the handler, before pods come.
func byNodeadm(s spec.Spec, _ facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	w := engine.Verify(e, h, lacking(e, h))
	if (s.Join.Method == "eks" || s.Join.Method == "auto") && lacking(e, h) != "" {
		w.Thing = things.Check(e.Config+" is nodeadm's", func(context.Context, host.View) (string, error) { return "", nil }, "").Thing
		w.Why = "nodeadm writes it when it runs next, and the handler into it"
	}
	return []converge.Want{w}, nil
}

// OnK0s is gpuadm's file on k0s.
const OnK0s = "/etc/k0s/containerd.d/" + dropIn

// onK0s wants the handler in a file of the folder whose files k0s merges into the configuration
// that it makes. k0s watches the folder, and starts containerd again when a file in it changes.
// gpuadm's file names the CRI plugin as the daemon does, since k0s refuses the older name with
// containerd 2. It states no version: then k0s assumes the daemon's. Sources: configurer.go and
// component.go in pkg/component/worker/containerd of https://github.com/k0sproject/k0s;
// https://docs.k0sproject.io/stable/runtime.
func onK0s(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	c, err := asRead(e)
	if err != nil {
		return nil, err
	}
	own := path.Join(e.Folder, dropIn)
	major, _, known := engine.ParseVersion(e.Version)
	switch {
	case f.Files[OnK0s] == nil && c.lacks(h) == "":
		w := engine.Verify(e, h, "")
		w.Why = "another file in " + e.Folder + " has the handler"
		return []converge.Want{w}, nil
	case !known:
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot add the handler %s: gpuadm does not know the version of k0s's containerd, which k0s unpacks at its first start", h.Name),
			Try:  []string{"systemctl start " + e.Unit, "then run the same command again"},
		}
	}
	h, wants := asDefault(s, f, c, h)
	plugin := criV2
	if major >= 2 {
		plugin = criV3
	}
	edit := func([]byte) ([]byte, error) { return k0sText(h, plugin, c.inherit(h, plugin)) }
	prove := func(ctx context.Context, v host.View, _, after []byte) error {
		if after == nil {
			return nil
		}
		return proveMerged(ctx, v, e, h)
	}
	wants = append(wants, things.Folders(e.Folder, "k0s adds the files in it to containerd's configuration")...)
	wants = append(wants, things.Edited(things.NewFile(own, nil).Validated(prove), edit, h.Why()))
	return append(wants, converge.Want{
		Thing: NewSupervised(e.Socket, []string{own}, h.Name), Why: "k0s starts containerd again when a file in " + e.Folder + " changes", Breaks: []string{"restart-runtime"},
		To: func(found converge.State) (converge.State, error) {
			return NewSupervised(e.Socket, nil, "").Current(found), nil
		},
	}), nil
}

// proveMerged has the daemon judge what k0s makes of an addition: k0s merges its tables into the
// CRI plugin's table of the file that it generates, which is what an edit of that file does.
func proveMerged(ctx context.Context, v host.View, e facts.Engine, h engine.Handler) error {
	t, daemon := treeOf(e), Daemon{Version: e.Version}
	target, err := Target(t, daemon, h)
	if err != nil {
		return err
	}
	found := t.data(target)
	merged, err := Edit(t, daemon, h, target, found)
	if err != nil {
		return err
	}
	return Validate(ctx, v, e.Binary, t, h, target, found, merged)
}

// k0sText is the text of gpuadm's file: the handler, and nothing else of the plugin.
func k0sText(h engine.Handler, plugin string, entry toml.Table) ([]byte, error) {
	at := []string{"plugins", plugin, "containerd"}
	var ops []toml.Op
	if h.Default {
		ops = append(ops, toml.Set(append(slices.Clone(at), "default_runtime_name"), h.Name))
	}
	return toml.Edit(nil, append(ops, toml.Set(append(at, "runtimes", h.Name), entry)))
}

// NewSupervised is a containerd that its supervisor restarts when its files change. containerd
// creates its socket at each start, so the age of the socket is the daemon's: sys.GetLocalListener
// in pkg/sys/socket_unix.go of https://github.com/containerd/containerd.
//
// The daemon has to serve the handler while the first of the files is there.
func NewSupervised(socket string, files []string, handler string) converge.Follower {
	return things.NewSupervised(socket, files, func(ctx context.Context, v host.View, _ string, _ []string) error {
		if len(files) > 0 {
			if _, err := v.Stat(files[0]); err != nil {
				handler = ""
			}
		}
		return Answers(ctx, v, facts.Engine{Socket: socket}, engine.Handler{Name: handler})
	})
}
