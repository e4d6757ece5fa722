// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/toml"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// K3s and RKE2 generate containerd's configuration at each start, with a handler for each NVIDIA program that they find. So what is
// left to do is, in this order: nothing; a restart of their unit; a drop-in where the generated file imports a folder (since pull
// 13680 of k3s-io/k3s, 2026); else a template beside it. The generated file itself is never edited. Sources: k3s-io/k3s,
// pkg/agent/containerd/config.go and runtimes.go, pkg/agent/templates/templates.go; https://docs.k3s.io/advanced. RKE2 has the same
// code as a module: rancher/rke2, go.mod.
func rancher(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	there := slices.Contains(h.Programs, h.Binary) || s.Has("toolkit")
	switch dropIn := rancherDropIn(e, h); {
	case len(treeOf(e).Root.Data) == 0 && e.Unit != "" && f.Kubelet.Unit == e.Unit && f.Kubelet.Active == "active":
		return nil, &trouble.Error{
			What:    fmt.Sprintf("cannot find the configuration that %s has made for containerd: %s is not there, and %s runs", e.Owner, e.Config, e.Unit),
			Because: []string{"gpuadm takes the data folder from the unit, its environment files and the config files"},
			Try:     []string{"systemctl show --property=ExecStart,EnvironmentFiles " + e.Unit + ", and look for its data folder", `write config = "PATH/agent/etc/containerd/config.toml" into [runtime]`},
		}
	case e.Unit == "" || len(treeOf(e).Root.Data) == 0:
		return nil, nil // it has not started yet: it looks for the program when it does
	case bytes.HasPrefix(template(e).Data, []byte(templateHead)):
		return templated(f, e, h)
	case lacking(lessFile(e, dropIn), h) == "":
		w := engine.Verify(e, h, lacking(e, h))
		w.Why = e.Owner + " has written the handler"
		return []converge.Want{w}, nil
	case !there:
		return nil, nil // and a note says so: the program comes later, and with it the handler
	case finds(e, h):
		return []converge.Want{wroteHandler(e, h), rancherRestart(f, e, h, h.Binary)}, nil
	case dropIn != "":
		c, err := asRead(e)
		if err != nil {
			return nil, err
		}
		h, works := asDefault(s, f, c, h)
		return append(works, editWants(f, e, h, dropIn, []string{dropIn})...), nil
	}
	return templated(f, e, h)
}

// finds says whether its next start writes the handler: it looks along PATH, as systemd has it by default, and in the GPU Operator's
// folder, the latter not in all versions with containerd 1.x (issues 10761 and 11001 of k3s-io/k3s).
func finds(e facts.Engine, h engine.Handler) bool {
	major, _, _ := engine.ParseVersion(e.Version)
	return h.Name == "nvidia" && !h.Default && (path.Dir(h.Binary) != path.Dir(facts.RuntimeOfOperator) || major >= 2)
}

// rancherDropIn is the path of our file in the folder that the generated file imports, "" if it imports none.
func rancherDropIn(e facts.Engine, h engine.Handler) string {
	c, err := asRead(e)
	if err != nil {
		return ""
	}
	name, _ := c.dropInPath()
	return name
}

// lessFile is the engine without one of its files.
func lessFile(e facts.Engine, name string) facts.Engine {
	e.Files = slices.DeleteFunc(slices.Clone(e.Files), func(f facts.File) bool { return f.Path == name && name != "" })
	return e
}

// rancherRestart wants the unit to have started after the last change of a file, and to serve the handler then. The file is never the
// generated one, which is younger than the unit's process.
func rancherRestart(f facts.Facts, e facts.Engine, h engine.Handler, file string) converge.Want {
	w := restarted(f, e, h, []string{file}, file, func(found []byte) ([]byte, error) { return found, nil })
	w.Why = fmt.Sprintf("%s writes the handler when it starts", e.Owner)
	return w
}

// wroteHandler finds a problem where the unit has started with the program there, and has written no handler: another restart would
// not bring it.
func wroteHandler(e facts.Engine, h engine.Handler) converge.Want {
	restart := things.NewRestart(e.Unit, []string{h.Binary}, nil)
	look := func(ctx context.Context, v host.View) (string, error) {
		state, err := restart.Look(ctx, v)
		if err != nil || state != things.UpToDate {
			return "", err
		}
		return fmt.Sprintf("cannot use the handler %s: %s has started after %s was there, and has not written it", h.Name, e.Unit, h.Binary), nil
	}
	return things.Check(fmt.Sprintf("handler %s in %s", h.Name, e.Config), look, e.Owner+" writes it when it starts",
		fmt.Sprintf("journalctl -u %s | grep -i runtime, which says where it looked", e.Unit),
		fmt.Sprintf("if %s has a template of its own, add the handler there, or {{ template \"base\" . }}", path.Dir(e.Config)))
}

// templateHead begins a template that gpuadm writes.
const templateHead = "# By gpuadm: what is generated without this file, and a handler.\n{{ template \"base\" . }}\n"

// templateOf is the template that adds the handler. It adds nothing where a newer K3s writes the handler by itself, since containerd
// does not start with a table that is there twice (https://github.com/k3s-io/docs/issues/566).
func templateOf(name string, h engine.Handler) []byte {
	return fmt.Appendf(nil, "%s{{ if not (index .ExtraRuntimes %q).BinaryName }}\n%s{{ end }}\n", templateHead, h.Name, templateTable(name, h))
}

// templateTable is the handler's own part of a template. SystemdCgroup is a field of what the template is given: k3s-io/k3s,
// pkg/agent/templates/templates.go, which writes it for runc.
func templateTable(name string, h engine.Handler) string {
	plugin := criV2
	if strings.Contains(path.Base(name), "-v3") {
		plugin = criV3
	}
	at := fmt.Sprintf("plugins.%q.containerd.runtimes.%q", plugin, h.Name)
	return fmt.Sprintf("[%s]\n  runtime_type = %q\n[%[1]s.options]\n  BinaryName = %[3]q\n  SystemdCgroup = {{ .SystemdCgroup }}\n", at, runcV2, h.Binary)
}

// template returns the template that the handler goes into: the one of the generated file's version.
func template(e facts.Engine) facts.File {
	v3 := false
	t := treeOf(e)
	if c, err := readFile(t.Root, t); err == nil {
		v3 = c.version >= 3
	}
	i := slices.IndexFunc(e.Templates, func(f facts.File) bool { return strings.Contains(path.Base(f.Path), "-v3") == v3 })
	return e.Templates[max(i, 0)]
}

// templated wants a template that adds the handler to what they generate.
func templated(f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	if h.Default {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot make %s the default runtime: %s generates %s", h.Name, e.Owner, e.Config),
			Try:  []string{fmt.Sprintf("write default-runtime: %s into /etc/rancher/%s/config.yaml, and drop set_as_default", h.Name, e.Owner)},
		}
	}
	major, minor, _ := engine.ParseVersion(e.Version)
	if patch := strings.SplitN(e.Version+"..", ".", 4)[2]; major < 2 && (minor < 7 || minor == 7 && len(patch) < 2 && patch < "7") {
		return nil, &trouble.Error{
			What: fmt.Sprintf("cannot add the handler %s: a template of this %s cannot add to what it generates", h.Name, e.Owner),
			Try:  []string{fmt.Sprintf("update %s to a release of November 2023 or newer", e.Owner)},
		}
	}
	name := template(e).Path
	refused := func(there string) error {
		return &trouble.Error{
			What: fmt.Sprintf("cannot add the handler %s: %s is there, and gpuadm edits no template", h.Name, there),
			Try:  []string{"add to it, on lines of their own: " + strings.Join(strings.Split(strings.TrimSpace(templateTable(there, h)), "\n"), " | "), "then: systemctl restart " + e.Unit},
		}
	}
	for _, t := range e.Templates {
		if t.Path != name && t.Data != nil { // the newer form's would take its place
			return nil, refused(t.Path)
		}
	}
	edit := func(found []byte) ([]byte, error) {
		if found != nil && !bytes.HasPrefix(found, []byte(templateHead)) {
			return nil, refused(name)
		}
		return templateOf(name, h), nil
	}
	file := things.Edited(things.NewFile(name, nil), edit, e.Owner+" generates the configuration from it")
	return append(things.Folders(path.Dir(name), ""), file, rancherRestart(f, e, h, name)), nil
}

// addition wants the handler in a file of the folder whose content k0s merges into the configuration that it makes. k0s watches the
// folder, and starts containerd again when a file in it changes. The file names the CRI plugin as the daemon does, since k0s refuses the
// older name with containerd 2, and states no version, which k0s takes for the daemon's. Sources: configurer.go and component.go in
// pkg/component/worker/containerd of https://github.com/k0sproject/k0s; https://docs.k0sproject.io/stable/runtime.
func addition(s spec.Spec, f facts.Facts, e facts.Engine, h engine.Handler) ([]converge.Want, error) {
	c, err := asRead(e)
	if err != nil {
		return nil, err
	}
	own := path.Join(e.Folder, dropIn)
	there := slices.ContainsFunc(e.Templates, func(f facts.File) bool { return f.Path == own })
	major, _, known := engine.ParseVersion(e.Version)
	switch {
	case !there && c.lacks(h) == "":
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
	edit := func([]byte) ([]byte, error) { return additionOf(h, plugin, c.inherit(h, plugin)) }
	wants = append(wants, things.Folders(e.Folder, "k0s adds the files in it to containerd's configuration")...)
	wants = append(wants, things.Edited(things.NewFile(own, nil), edit, h.Why()))
	return append(wants, converge.Want{
		Thing: NewSupervised(e.Socket, []string{own}), Why: "k0s starts containerd again when a file in " + e.Folder + " changes", Breaks: []string{"restart-runtime"},
		To: func(found converge.State) (converge.State, error) {
			return NewSupervised(e.Socket, nil).Current(found), nil
		},
	}), nil
}

// additionOf is the text of gpuadm's file: the handler, and nothing else of the plugin.
func additionOf(h engine.Handler, plugin string, entry toml.Table) ([]byte, error) {
	at := []string{"plugins", plugin, "containerd"}
	var ops []toml.Op
	if h.Default {
		ops = append(ops, toml.Set(append(slices.Clone(at), "default_runtime_name"), h.Name))
	}
	return toml.Edit(nil, append(ops, toml.Set(append(at, "runtimes", h.Name), entry)))
}

// NewSupervised is a containerd that its supervisor restarts when its files change. containerd creates its socket at each start,
// so the age of the socket is the daemon's: sys.GetLocalListener in pkg/sys/socket_unix.go of https://github.com/containerd/containerd.
func NewSupervised(socket string, files []string) converge.Follower {
	return things.NewSupervised(socket, files, func(ctx context.Context, v host.View, _ string, _ []string) error {
		return Answers(ctx, v, socket, "")
	})
}

// inherit makes a new handler's table from the runtime that pods get today, so that cgroups, base spec, CNI and
// annotations stay the same and only the binary differs.
func (c *criTree) inherit(h engine.Handler, plugin string) toml.Table {
	like := c.template(h)
	kind := toml.String(like, "runtime_type")
	options := toml.Table{}.With("BinaryName", h.Binary)
	entry := toml.Table{}.With("runtime_type", runcV2)
	for _, p := range toml.Sorted(like) {
		if inheritable(p.Key, kind) && !isZero(p.Value) {
			if plugin != criV3 && p.Key == "sandboxer" && like["sandbox_mode"] == nil {
				p.Key = "sandbox_mode" // as files of version 2 call it, and migration has renamed it
			}
			entry = append(entry, p)
		}
	}
	if isRunc(kind) {
		for _, p := range toml.Sorted(toml.Sub(like, "options")) {
			// What is empty is the daemon's default; SystemdCgroup is worth seeing even so.
			if !strings.EqualFold(p.Key, "BinaryName") && (!isZero(p.Value) || strings.EqualFold(p.Key, "SystemdCgroup")) {
				options = append(options, p)
			}
		}
	}
	if h.Systemd && !slices.ContainsFunc(options, func(p toml.Pair) bool { return strings.EqualFold(p.Key, "SystemdCgroup") }) {
		options = options.With("SystemdCgroup", true)
	}
	return entry.With("options", options)
}

// template is the entry to inherit from: the default one, else runc, else crun, else any that takes runc's options.
// Only if there is none, it is a foreign default such as kata.
func (c *criTree) template(h engine.Handler) map[string]any {
	runtimes := toml.Sub(c.cri, "containerd", "runtimes")
	fits := func(name string) bool {
		entry, ok := runtimes[name].(map[string]any)
		return ok && name != h.Name && isRunc(toml.String(entry, "runtime_type"))
	}
	names := []string{c.defaultName(), "runc", "crun"}
	if i := slices.IndexFunc(names, fits); i >= 0 {
		entry, _ := runtimes[names[i]].(map[string]any)
		return entry
	}
	if others := slices.DeleteFunc(slices.Collect(maps.Keys(runtimes)), func(name string) bool { return !fits(name) }); len(others) > 0 {
		entry, _ := runtimes[slices.Min(others)].(map[string]any)
		return entry
	}
	foreign, _ := runtimes[c.defaultName()].(map[string]any)
	return foreign
}

// isRunc says that the options are those of runc. A missing type is runc's on 2.x, which fills it in.
func isRunc(kind string) bool { return kind == runcV2 || kind == runcV1 || kind == "" }

// inheritable are the keys that mean the same for the new handler. A foreign type's own settings do not: kata's
// privileged_without_host_devices would take the GPUs from privileged pods.
func inheritable(key, kind string) bool {
	switch strings.ToLower(key) {
	case "runtime_type", "runtime_engine", "runtime_root", "options":
		return false
	case "runtime_path":
		return kind == runcV2
	case "cni_conf_dir", "cni_max_conf_num", "base_runtime_spec":
		return true
	}
	return isRunc(kind)
}
