// SPDX-License-Identifier: Apache-2.0

package repos

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	shell "github.com/gpuadm/gpuadm/test/containerd/parts"
)

// parts are what packages are made of.
type parts struct {
	Recipe
	fake string // the program in place of NVIDIA's daemons
}

// makeParts builds what is not in the recipe.
func makeParts(ctx context.Context, r Recipe, dir string) (parts, error) {
	fake := filepath.Join(dir, "daemon")
	cmd := exec.CommandContext(ctx, "go", "build",
		"-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=",
		"-o", fake, "github.com/gpuadm/gpuadm/test/lab/repos/daemon")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return parts{}, fmt.Errorf("cannot build the daemon of the packages: %w: %s", err, out)
	}
	return parts{r, fake}, nil
}

// program is one that says a version, and otherwise waits.
func (in parts) program(says string) File {
	return File{From: in.fake, Text: "\n" + says + "\n", Mode: 0o755}
}

// daemon is a program and its unit of the same name.
func (in parts) daemon(name, says string) map[string]File {
	return in.daemonOfUnit(name, name, says)
}

func (in parts) daemonOfUnit(unitName, name, says string) map[string]File {
	return map[string]File{
		"/usr/bin/" + name: in.program(says),
		"/usr/lib/systemd/system/" + unitName + ".service": unit(unitName, "/usr/bin/"+name),
	}
}

// lib is a shared library of the driver, and the link that ldconfig would make of its name.
func (in parts) lib(dir, so, soname, version string) (map[string]File, error) {
	whole := so + "." + version
	if so == "libnvidia-ml.so" && in.NVML != "" {
		return map[string]File{
			dir + whole:  {From: in.NVML},
			dir + soname: {Link: whole},
		}, nil
	}

	text, err := library(cmp.Or(soname, whole))
	files := map[string]File{dir + whole: {Text: text}}
	if soname != "" && soname != whole {
		files[dir+soname] = File{Link: whole}
	}
	return files, err
}

// toolkit are the programs that containerd's configuration names. The runtime is runc: no container
// needs a GPU here.
func (in parts) toolkit(v string) map[string]File {
	ctk := in.program("NVIDIA Container Toolkit CLI version " + v)
	if in.CTK != "" {
		ctk = File{From: in.CTK, Mode: 0o755}
	}
	return map[string]File{
		"/usr/bin/nvidia-ctk":                         ctk,
		"/usr/bin/nvidia-container-runtime":           {Text: "#!/bin/sh\nexec /usr/bin/runc \"$@\"\n", Mode: 0o755},
		"/etc/nvidia-container-runtime/config.toml":   {Text: "disable-require = false\n"},
		"/usr/share/nvidia-container-toolkit/version": {Text: v + "\n"},
	}
}

// smi is nvidia-smi on a machine that has not loaded the module, as every host of the lab.
func smi() File {
	const says = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. " +
		"Make sure that the latest NVIDIA driver is installed and running."
	return File{Text: "#!/bin/sh\necho \"" + says + "\"\nexit 9\n", Mode: 0o755}
}

// firmware has the names of the real one.
func firmware(v string) map[string]File {
	return map[string]File{
		"/usr/lib/firmware/nvidia/" + v + "/gsp_ga10x.bin": {Text: v + "\n"},
		"/usr/lib/firmware/nvidia/" + v + "/gsp_tu10x.bin": {Text: v + "\n"},
	}
}

// command runs a program of this machine.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	return shell.Run(ctx, dir, nil, name, args...)
}
