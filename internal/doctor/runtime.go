// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/pattern"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/runtime"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// engine returns the engine that pods run on, and its configuration; ok is false where there is
// none, or gpuadm cannot tell.
func (m *Machine) engine() (found facts.Engine, config engine.Configured, ok bool) {
	found, err := runtime.ForPods(m.Basics())
	if err != nil {
		return found, engine.Configured{}, false
	}
	return found, runtime.ReadConfigured(found), true
}

// generates reports whether the engine's process writes its own configuration and kubelet's after
// each start, as K3s and RKE2 do: the files are always younger than the process. Sources:
// pkg/agent/containerd/config_linux.go in https://github.com/k3s-io/k3s,
// https://docs.k3s.io/advanced.
func (m *Machine) generates() bool {
	found, _, ok := m.engine()
	return ok && (found.Owner == "k3s" || found.Owner == "rke2")
}

// isNvidia reports whether a handler's program is one of NVIDIA's.
func isNvidia(program string) bool {
	return strings.HasPrefix(path.Base(program), "nvidia-container-runtime")
}

func noHandler(m *Machine) []Finding {
	found, config, ok := m.engine()
	if !ok || config.Unreadable != nil || found.Name == "docker" || !m.needsHandler() {
		return nil
	}

	programs := m.Basics().Programs
	for _, program := range config.Programs {
		if isNvidia(program) || slices.Contains(programs, program) { // Bottlerocket's is nvidia-oci
			return nil
		}
	}

	finding := Finding{
		Object:  found.Config,
		What:    fmt.Sprintf("%s is installed, and no handler in %s runs it", programs[0], found.Config),
		Command: engine.Shows(found),
	}
	if namesOfOtherVersion(found) {
		finding.What += "; the file is of version 1, in which the CRI plugin's long name counts for nothing"
		finding.Fix = "write version = 2 at the top of " + found.Config + ", and restart the engine"
		finding.Other = "an operator or another program chose the version of the file"
	}

	return []Finding{finding}
}

// namesOfOtherVersion reports whether containerd's file is of version 1, and has the name that the
// CRI plugin has from version 2 on. Sources:
// https://github.com/NVIDIA/nvidia-container-toolkit/issues/410;
// https://github.com/containerd/containerd (docs/PLUGINS.md, docs/man/containerd-config.toml.5.md).
func namesOfOtherVersion(e facts.Engine) bool {
	for _, file := range e.Files {
		if file.Path != e.Config || e.Name != "containerd" {
			continue
		}
		isNewer := versionKey().Match(file.Data)
		return !isNewer && bytes.Contains(file.Data, []byte("io.containerd.grpc.v1.cri"))
	}
	return false
}

// versionKey is the key of a file of version 2 or newer.
var versionKey = pattern.Of(`(?m)^\s*version\s*=\s*[2-9]`)

// needsHandler reports whether pods get a GPU only from a handler: no CDI spec injects it, and no
// device plugin runs without a handler.
func (m *Machine) needsHandler() bool {
	f := m.Facts()
	if f.Driver == nil || f.Kubelet.Unit == "" || len(f.Programs) == 0 || !runtime.NeedsHandler(f) {
		return false
	}
	return len(cdi.ReadOtherSpecs(m.View, "").Injectors()) == 0 && len(m.plugins()) == 0
}

func oldConfiguration(m *Machine) []Finding {
	found, _, ok := m.engine()
	if !ok || m.generates() {
		return nil
	}
	wants, err := runtime.Reread(m.Basics())
	if err != nil {
		return nil
	}

	restart := wants[0]
	state, err := restart.Look(m.ctx, m.View)
	if err != nil || things.DaemonState(state) != things.Outdated {
		return nil
	}
	unit := restart.Ref().Name
	switch {
	case found.Child:
		unit = engine.UnitOf(found) // the thing goes by the age of the daemon's socket
	case !m.outdated(unit, restart.Ref().Reads):
		return nil
	}

	return []Finding{{
		Object:  unit,
		What:    fmt.Sprintf("%s started before its configuration was changed last", unit),
		Command: "systemctl status " + unit,
	}}
}

func unreadable(m *Machine) []Finding {
	found, config, ok := m.engine()
	if !ok {
		return nil
	}
	err := config.Unreadable
	if err == nil && found.Binary != "" && !m.generates() {
		err = runtime.Loads(found)(m.ctx, m.View)
	}

	// RUN-004 names a program that is missing; without a kubelet containerd may be here for other
	// tools.
	servesNoPods := m.Basics().Kubelet.Unit == "" && errors.Is(err, engine.NoCRI)
	if err == nil || errors.Is(err, engine.NoProgram) || servesNoPods {
		return nil
	}
	if errors.As(err, new(engine.NotJudged)) {
		m.cannotRead("the configuration of "+found.Name, err)
		return nil
	}
	if errors.Is(err, engine.NoCRI) {
		return []Finding{withoutCRI(found)}
	}
	finding := Finding{
		Object:  found.Config,
		What:    err.Error(),
		Command: engine.Shows(found),
	}
	var t *trouble.Error
	if errors.As(err, &t) {
		finding.Fix = strings.Join(t.Try, "; ")
	}
	return []Finding{finding}
}

// withoutCRI describes a containerd that serves no pods, as Docker's package of it is set up. The
// command takes out a list that has nothing but the plugins which kubelet needs.
// Sources: https://github.com/containerd/containerd/issues/4581, and its issue 14121.
func withoutCRI(found facts.Engine) Finding {
	file := decidingFile(found, "disabled_plugins")
	finding := Finding{
		Object:  found.Config,
		What:    "disabled_plugins in " + file + " switches off the CRI plugin, without which kubelet cannot use this containerd",
		Fix:     "take the plugin out of disabled_plugins, and restart containerd",
		Command: engine.Shows(found),
	}
	isIts := func(f facts.File) bool { return f.Path == file && disablesCRI().Match(f.Data) }
	if slices.ContainsFunc(found.Files, isIts) && found.Unit != "" {
		edit := fmt.Sprintf(`sudo sed -i -E 's/^(\s*disabled_plugins\s*=).*/\1 []/' %s`, file)
		// The repair has containerd judge its files first: another fault in them would end a
		// containerd that still runs.
		finding.Command = edit + " && " + trouble.Command("repair RUN-002")
	}

	return finding
}

// disablesCRI matches a list, in a line of its own, of nothing but the plugins that serve pods.
var disablesCRI = pattern.Of(`(?m)^[ \t]*disabled_plugins[ \t]*=[ \t]*\[[ \t]*(?:["'](?:cri|io\.containerd\.grpc\.v1\.cri|io\.containerd\.cri\.v1\.\w+)["'][ \t]*,?[ \t]*)+\][ \t]*$`)

func unreadSettings(m *Machine) (list []Finding) {
	found, config, _ := m.engine()
	for _, what := range config.Unread {
		list = append(list, Finding{
			Object:  found.Config,
			What:    what,
			Command: engine.Shows(found),
		})
	}

	return list
}

func noProgram(m *Machine) (list []Finding) {
	found, config, ok := m.engine()
	if !ok {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(config.Programs)) {
		program := config.Programs[name]
		if !isNvidia(program) || !path.IsAbs(program) || m.has(program) {
			continue
		}

		finding := Finding{
			Object: name,
			What: fmt.Sprintf(
				"handler %s in %s runs %s, which is not there",
				name, decidingFile(found, program), program,
			),
			Command: "ls -l " + program,
		}
		if name == config.Default {
			finding.What += ", and it is the default"
			finding.Part = "default"
		}
		list = append(list, finding)
	}

	return list
}

// notExecutable finds programs that the kernel does not start, whatever their mode says.
func notExecutable(m *Machine) (list []Finding) {
	_, config, ok := m.engine()
	if !ok {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(config.Programs)) {
		program := config.Programs[name]
		if !path.IsAbs(program) {
			program = m.onPath(program)
		}
		if !m.has(program) {
			continue // RUN-004
		}
		mount := m.mountOf(program)
		if len(mount) == 0 || !slices.Contains(strings.Split(mount[3], ","), "noexec") {
			continue
		}
		list = append(list, Finding{
			Object:  name,
			What:    fmt.Sprintf("handler %s runs %s, and %s is mounted with noexec", name, program, mount[1]),
			Command: "sudo mount -o remount,exec " + mount[1],
		})
	}

	return list
}

// noRuntimeType finds handlers of NVIDIA's program for which containerd starts no container.
func noRuntimeType(m *Machine) (list []Finding) {
	found, config, ok := m.engine()
	if !ok {
		return nil
	}
	for _, name := range config.Untyped {
		forGPUs := name == config.Default || isNvidia(config.Programs[name])
		if name == "runc" || !forGPUs {
			continue // containerd has a type for runc, and no pod with a GPU asks for the others
		}
		list = append(list, Finding{
			Object: name,
			What: fmt.Sprintf(
				"the handler %s in %s has no runtime_type",
				name, decidingFile(found, config.Programs[name]),
			),
			Command: engine.Shows(found),
		})
	}

	return list
}

// littleLockedMemory notes a limit that only a container's root with CAP_IPC_LOCK passes.
func littleLockedMemory(m *Machine) []Finding {
	found, _, ok := m.engine()
	devices, _ := m.View.ReadDir("/sys/class/infiniband")
	if !ok || found.Unit == "" || len(devices) == 0 {
		return nil
	}
	u, ok := m.Unit(found.Unit)
	if !ok || u.PID == 0 {
		return nil
	}
	text, _ := m.text(fmt.Sprintf("/proc/%d/limits", u.PID))
	_, limit, isListed := strings.Cut(text, "Max locked memory")
	fields := strings.Fields(limit) // "8388608 8388608 bytes": proc_pid_limits(5)
	if !isListed || len(fields) == 0 || fields[0] == "unlimited" {
		return nil
	}
	return []Finding{{
		Object: found.Unit,
		What: fmt.Sprintf(
			"the machine has RDMA devices (%s), and containers of %s may lock %s bytes of memory: LimitMEMLOCK=infinity in the unit lets them register more",
			trouble.Few(devices, 3)[0], found.Unit, fields[0],
		),
		Note: true,
	}}
}

// onPath is where a daemon finds a program that its configuration names without a folder:
// systemd.exec(5), $PATH. It is the name itself where it is nowhere.
func (m *Machine) onPath(program string) string {
	for _, folder := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"} {
		if m.has(path.Join(folder, program)) {
			return path.Join(folder, program)
		}
	}
	return program
}

// mountOf returns the fields of the mount that a file is on: the nearest folder above it, and of
// several mounts on one folder the last.
func (m *Machine) mountOf(file string) (mount []string) {
	if to, err := m.View.Resolve(file); err == nil {
		file = to
	}
	for _, fields := range m.mounts("/proc/self/mounts") {
		folder := strings.TrimSuffix(fields[1], "/") + "/"
		nearer := len(mount) == 0 || len(fields[1]) >= len(mount[1])
		if strings.HasPrefix(file, folder) && nearer {
			mount = fields
		}
	}

	return mount
}

// engineStopped allows an engine to be stopped before kubelet has joined.
func engineStopped(m *Machine) []Finding {
	found, _, ok := m.engine()
	if ok && found.Unit == "" && !found.Child && m.Basics().Kubelet.Joined {
		unit := found.Name + ".service"
		if u, known := m.Unit(unit); known && u.Load == "masked" && u.PID == 0 {
			return []Finding{maskedUnit(unit)}
		}
	}

	if !ok || !m.hasNoProcess(found.Unit) {
		return nil
	}
	u, _ := m.Unit(found.Unit)
	if u.Active == "inactive" && !m.Basics().Kubelet.Joined {
		return nil
	}
	return m.stoppedUnit(found.Unit)
}

func engineCrashes(m *Machine) []Finding {
	found, _, ok := m.engine()
	if !ok || !m.hasNoProcess(found.Unit) {
		return nil
	}
	return m.crashLoop(found.Unit)
}

// otherCgroups compares kubelet's cgroup driver with that of containerd 1.x. From containerd 2.0 on
// kubelet asks the engine.
// Sources: https://github.com/containerd/containerd/pull/8722 (RuntimeConfig, first in v2.0.0);
// https://github.com/kubernetes/enhancements, keps/sig-node/4033-group-driver-detection-over-cri.
func otherCgroups(m *Machine) (list []Finding) {
	found, config, ok := m.engine()
	driver := m.Basics().Kubelet.CgroupDriver
	if !ok || driver == "" || found.Name != "containerd" || !strings.HasPrefix(found.Version, "1.") {
		return nil
	}

	for _, name := range slices.Sorted(maps.Keys(config.Cgroups)) {
		actual := config.Cgroups[name]
		runsGPUs := name == config.Default || name == "nvidia"
		if actual == driver || !runsGPUs {
			continue
		}

		want := driver == "systemd"
		file, command := stateCgroups(found, want)
		finding := Finding{
			Object:  name,
			What:    fmt.Sprintf("handler %s in %s uses %s, and kubelet uses %s", name, file, actual, driver),
			Command: command,
		}
		if command == "" {
			finding.What += fmt.Sprintf("; no line there says SystemdCgroup: write SystemdCgroup = %t into the options of %s", want, name)
		}
		list = append(list, finding)
	}

	return list
}

// stateCgroups is the file that decides what manages the cgroups of containers, and the command
// that has it say so. There is no command where no line of the file states it: a line alone, and
// not a comment.
func stateCgroups(e facts.Engine, systemd bool) (file, command string) {
	file = decidingFile(e, "SystemdCgroup")
	for _, f := range e.Files {
		line := statesCgroupfs
		if !systemd {
			line = statesSystemd
		}
		if f.Path != file || !line().Match(f.Data) {
			continue
		}
		command = fmt.Sprintf(`sudo sed -i -E 's/^(\s*SystemdCgroup\s*=\s*)%t/\1%t/' %s && %s`,
			!systemd, systemd, file, trouble.Command("repair RUN-002"))
	}

	return file, command
}

// The lines that state SystemdCgroup.
var (
	statesSystemd  = pattern.Of(`(?m)^[ \t]*SystemdCgroup[ \t]*=[ \t]*true`)
	statesCgroupfs = pattern.Of(`(?m)^[ \t]*SystemdCgroup[ \t]*=[ \t]*false`)
)

func oldSpec(m *Machine) []Finding {
	if u, known := m.Unit(cdi.Unit); !known || u.Load == "not-found" {
		return nil // nothing writes it again, as on Talos, where the image does: CDI-002
	}
	state, err := cdi.Spec().Look(m.ctx, m.View)
	problem := cdi.Problem(state)
	if err != nil || problem == "" || cdi.IsBeingWritten(m.ctx, m.View) {
		return nil
	}
	return []Finding{{
		Object:  cdi.Output(m.View),
		What:    problem,
		Command: "systemctl status " + cdi.Unit,
	}}
}

// refreshGivenUp finds the toolkit's units that systemd runs no more, after failures.
func refreshGivenUp(m *Machine) []Finding {
	state, err := cdi.Refresh().Look(m.ctx, m.View)
	units := cdi.GivenUp(state)
	if err != nil || units == "" {
		return nil
	}

	what := units + " failed, and systemd does not start it again: after a change of the driver the spec stays as it is"
	if rule := cdi.Rule(m.View); rule != "" {
		what += "; " + rule + " starts the service when the driver's module is loaded, also before the driver's libraries are there"
	}
	return []Finding{{
		Object:  cdi.Unit,
		What:    what,
		Command: "sudo journalctl --no-pager --lines=20 --unit=" + cdi.Unit,
	}}
}

// specFolders are the folders in which the engine looks for CDI specs; nil for the usual ones.
func (m *Machine) specFolders() []string {
	found, _, ok := m.engine()
	if !ok {
		return nil
	}
	return runtime.CDIFolders(found)
}

// unreadSpec finds the toolkit's spec where an engine does not look for it.
func unreadSpec(m *Machine) (found []Finding) {
	for _, e := range runtime.ReadingSpecs(m.Basics()) {
		folders := runtime.CDIFolders(e)
		if folders == nil {
			continue
		}
		spec := cdi.Unread(m.View, folders)
		if spec == "" {
			continue
		}

		key := "cdi_spec_dirs"
		if e.Name == "docker" {
			key = "cdi-spec-dirs"
		}
		found = append(found, Finding{
			Object: spec,
			What: fmt.Sprintf("%s looks for CDI specs in %s alone, as %s says, and the toolkit's service writes %s",
				e.Name, strings.Join(folders, " and "), decidingFile(e, key), spec),
			Command: engine.Shows(e),
		})
	}
	return found
}

// foreignSpecs returns the CDI specs that other tools than gpuadm have written.
func (m *Machine) foreignSpecs() []cdi.ForeignSpec {
	all := cdi.ReadOtherSpecs(m.View, m.Basics().ReadsCDI(m.View), m.specFolders()...)
	return all.Foreign(m.View)
}

// otherSpecFaults finds specs with a fault that other tools than gpuadm have written.
func otherSpecFaults(m *Machine) (found []Finding) {
	for _, spec := range m.foreignSpecs() {
		if spec.Conflicts || spec.Problem == "" {
			continue
		}
		command := "sudo nvidia-ctk cdi generate --output=" + spec.File
		if spec.Kind != cdi.Kind {
			command = "sudo nvidia-ctk cdi list"
		}
		found = append(found, Finding{
			Object:  spec.File,
			What:    spec.File + ": " + spec.Problem,
			Command: command,
		})
	}
	return found
}

// conflictingSpecs finds specs of other tools for the devices of gpuadm's spec.
func conflictingSpecs(m *Machine) (found []Finding) {
	for _, spec := range m.foreignSpecs() {
		if !spec.Conflicts {
			continue
		}
		found = append(found, Finding{
			Object:  spec.File,
			What:    fmt.Sprintf("%s and %s are both specs for %s", spec.File, cdi.Output(m.View), cdi.Kind),
			Command: "sudo rm " + spec.File,
		})
	}
	return found
}
