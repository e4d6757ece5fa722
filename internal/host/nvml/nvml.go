// SPDX-License-Identifier: Apache-2.0

// Package nvml asks the NVIDIA driver by its library NVML, and starts CUDA in processes of its own.
package nvml

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/commands"
	"github.com/gpuadm/gpuadm/internal/host/files"
)

// NVML is the driver's library. It is opened for each call and shut down after it: an open NVML
// holds /dev/nvidiactl, and the kernel module could not be unloaded.
type NVML struct {
	files     *files.Files     // where the module's version and the libraries are looked up
	libraries []string         // in the order of preference: a name for the loader, or paths
	offers    map[string]offer // what each model of GPU offers, as the driver has said in this process
	more      bool             // read what no plan asks for
	steps     *steps           // says what was answered so far
	use                        // go-nvml keeps which symbols the library has in variables of its own
}

// offer is what the GPUs of a model can be partitioned into: it is the same for all of them and as
// long as the driver is.
type offer struct {
	profiles []host.Profile
	compute  map[int][]host.ComputeProfile // by the profile's id; the driver says it once an instance exists
}

const (
	nvmlName  = "libnvidia-ml.so.1"
	noLibrary = "LIBRARY_NOT_FOUND" // NVML's answer where there is no library
)

// driverContainer is the root of a driver container:
// https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/.
const driverContainer = "/run/nvidia/driver"

// New opens the first of the libraries that exists. If none is named, it looks where the driver may
// have installed NVML.
func New(files *files.Files, libraries ...string) *NVML {
	if len(libraries) == 0 {
		libraries = driverLibraries(nvmlName)
	}
	return &NVML{
		files:     files,
		libraries: libraries,
		offers:    map[string]offer{},
		use:       newUse(),
	}
}

// driverLibraries lists where a library of the driver may be: where the loader finds it, then below
// the root of a driver container, then in a folder of Container-Optimized OS, whose /usr is
// read-only. GKE's installer uses the first of these two folders, the installer for machines
// without GKE the second: https://github.com/GoogleCloudPlatform/container-engine-accelerators,
// nvidia-driver-installer/cos.
func driverLibraries(name string) []string {
	return []string{
		name,
		path.Join(driverContainer, "usr/lib64", name),
		path.Join(driverContainer, "usr/lib/x86_64-linux-gnu", name),
		path.Join(driverContainer, "usr/lib/aarch64-linux-gnu", name),
		path.Join("/home/kubernetes/bin/nvidia/lib64", name),
		path.Join("/var/lib/nvidia/lib64", name),
	}
}

// because says why no driver answers. Code is NVML's name for what its initialisation returned.
func (d *NVML) because(code string) *host.NoDriver {
	why := d.explain(code)
	why.Code = code
	return why
}

func (d *NVML) explain(code string) *host.NoDriver {
	module := d.moduleVersion()
	switch code {
	case noLibrary:
		if module == "" {
			return &host.NoDriver{
				Why: "neither its library " + nvmlName + " nor the kernel module nvidia is there",
				Try: "install the NVIDIA driver",
			}
		}
		return &host.NoDriver{
			Why: "the kernel module nvidia " + module + " is loaded, but the library " + nvmlName + " is not found",
			Try: "install the libraries of driver " + module,
		}
	case "DRIVER_NOT_LOADED":
		if module == "" {
			return &host.NoDriver{
				Why: "the kernel module nvidia is not loaded",
				Try: "modprobe nvidia; if it fails, dmesg says why",
			}
		}
		return &host.NoDriver{
			Why: "the kernel module nvidia " + module + " is loaded, but /dev/nvidiactl cannot be opened",
			Try: "nvidia-modprobe -c 255 makes the device file; if it is there, dmesg says why",
		}
	case "LIB_RM_VERSION_MISMATCH":
		return d.mismatch(module)
	case "NO_PERMISSION":
		return &host.NoDriver{
			Why: "no permission",
			Try: "run gpuadm as root, and in a container with access to /dev/nvidia*",
		}
	}

	return &host.NoDriver{
		Why: "NVML cannot be initialised: " + code,
		Try: "dmesg | grep NVRM says why",
	}
}

// mismatch says which versions differ, and whether only this process has the old one: the loader
// never unloads a library that a program has called by name, so this process keeps the library that
// it loaded when NVML was first asked.
func (d *NVML) mismatch(module string) *host.NoDriver {
	const library = "libnvidia-ml.so."
	loaded, deleted := d.loadedLibrary()
	version := strings.TrimPrefix(path.Base(loaded), library)
	_, err := d.files.Stat(path.Join(path.Dir(loaded), library+module))
	replaced := err == nil && version != module
	if deleted || replaced {
		return &host.NoDriver{
			Why:   fmt.Sprintf("the driver was changed from %s to %s while gpuadm ran, and its library cannot be loaded twice", version, module),
			Try:   "run gpuadm again",
			Again: true,
		}
	}

	const why = "the kernel module is of driver %s and the library of %s"
	return &host.NoDriver{
		Why: fmt.Sprintf(why, versionOrUnknown(module), versionOrUnknown(version)),
		Try: "stop what uses the GPUs and reload the kernel module, or reboot",
	}
}

func versionOrUnknown(version string) string {
	if version == "" || version == "." {
		return "an unknown version"
	}
	return version
}

// moduleVersion returns the version of the loaded kernel module; "" if none is loaded.
func (d *NVML) moduleVersion() string {
	data, err := d.files.ReadFile("/sys/module/nvidia/version")
	if err != nil {
		return ""
	}
	return printable(strings.TrimSpace(string(data)))
}

// loadedLibrary returns the file from which this process has loaded NVML, and whether that file was
// deleted: proc_pid_maps(5).
func (d *NVML) loadedLibrary() (file string, deleted bool) {
	maps, err := d.files.ReadFile("/proc/self/maps")
	if err != nil {
		return "", false
	}
	found := regexp.MustCompile(`(?m) (/\S*/libnvidia-ml\.so\S*)( \(deleted\))?$`).FindSubmatch(maps)
	if found == nil {
		return "", false
	}
	return string(found[1]), len(found[2]) > 0
}

// lostAddresses lists the PCI addresses of the GPUs that the kernel module has and for which NVML
// gave no handle.
func (d *NVML) lostAddresses(answered []host.GPU) []string {
	have := map[string]bool{}
	for _, g := range answered {
		have[g.Address] = true
	}
	var lost []string
	for _, name := range d.listed() {
		if !have[name] {
			lost = append(lost, name)
		}
	}

	return lost
}

// listed are the PCI addresses of the GPUs that the kernel module has, in NVML's order.
func (d *NVML) listed() []string {
	names, _ := d.files.ReadDir("/proc/driver/nvidia/gpus")
	return names
}

// maxNVMLString is longer than any string NVML has: 96 bytes.
const maxNVMLString = 128

// printable makes a string from the driver safe to print: firmware wrote most of them.
func printable(s string) string {
	dropControl := func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}

	s = strings.Map(dropControl, strings.ToValidUTF8(s, "?"))
	if len(s) > maxNVMLString {
		s = strings.ToValidUTF8(s[:maxNVMLString], "")
	}
	return strings.TrimSpace(s)
}

// Reset has do run nvidia-smi.
func Reset(ctx context.Context, do func(context.Context, ...string) ([]byte, error), gpus []string) error {
	if len(gpus) == 0 { // without -i nvidia-smi resets all GPUs
		return nil
	}
	host.KeptOf(ctx).End() // an open session holds the GPUs, gpuadm's own too
	output, err := do(ctx, resetCommand(gpus)...)
	return withOutput(err, output)
}

// withOutput adds a program's standard output to its error: nvidia-smi prints its refusals there.
func withOutput(err error, output []byte) error {
	failed := (*host.CommandError)(nil)
	if !errors.As(err, &failed) || failed.Stderr != "" {
		return err
	}
	var words commands.Tail
	_, _ = words.Write(output)
	detailed := *failed
	detailed.Stderr = words.String()
	return &detailed
}

// resetCommand is how nvidia-smi is asked to reset GPUs.
func resetCommand(gpus []string) []string {
	return []string{"nvidia-smi", "--gpu-reset", "-i", strings.Join(gpus, ",")}
}
