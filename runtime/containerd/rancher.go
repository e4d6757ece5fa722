// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// rancher wants the handler in the configuration that K3s and RKE2 generate at each start, with a handler for each NVIDIA program that they
// find. gpuadm takes the first that suffices: nothing; a restart of their unit; a drop-in, if the generated file imports a folder (since
// pull 13680 of k3s-io/k3s, 2026); a template beside that file. It never edits the generated file. Sources: k3s-io/k3s,
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
		return nil, nil // lacksToolkit notes it: K3s writes the handler once the program is installed
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

// finds says whether K3s or RKE2 writes the handler at its next start. It looks for the program along systemd's default PATH, and in the
// GPU Operator's folder; not all versions with containerd 1.x look there (issues 10761 and 11001 of k3s-io/k3s).
func finds(e facts.Engine, h engine.Handler) bool {
	major, _, _ := engine.ParseVersion(e.Version)
	return h.Name == "nvidia" && !h.Default && (path.Dir(h.Binary) != path.Dir(facts.RuntimeOfOperator) || major >= 2)
}

// rancherDropIn is the path of gpuadm's file in the folder that the generated file imports, "" if it imports none.
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

// rancherRestart wants the unit to have started after the last change of a file, and to serve the handler then. The file must not be the
// generated one, which is always newer than the unit's process.
func rancherRestart(f facts.Facts, e facts.Engine, h engine.Handler, file string) converge.Want {
	w := restarted(f, e, h, []string{file}, file, func(found []byte) ([]byte, error) { return found, nil })
	w.Why = fmt.Sprintf("%s writes the handler when it starts", e.Owner)
	return w
}

// wroteHandler finds a problem if the unit has started since the program was installed, and has not written the handler: another restart
// would not help.
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

// templated wants a template that adds the handler to what K3s or RKE2 generates.
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
