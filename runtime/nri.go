// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"

	"github.com/gpuadm/gpuadm/internal/facts"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/things/cdi"
	"github.com/gpuadm/gpuadm/runtime/containerd"
	"github.com/gpuadm/gpuadm/runtime/crio"
	"github.com/gpuadm/gpuadm/runtime/engine"
)

// nriNote says that the GPU Operator's NRI plugin cannot work here, for inject = "cdi" where no
// other injector is to be seen: the plugin writes no spec by which gpuadm knows it.
// Sources: "About the Node Resource Interface (NRI) Plugin" in gpu-operator/cdi.rst of
// https://github.com/NVIDIA/cloud-native-docs; enable-nri-plugin in cmd/nvidia-ctk-installer of
// https://github.com/NVIDIA/nvidia-container-toolkit.
func nriNote(v host.View, s spec.Spec, f facts.Facts, e facts.Engine) []string {
	if s.Runtime.Inject != "cdi" || !v.Live() {
		return nil
	}
	others := cdi.ReadOtherSpecs(v, f.ReadsCDI(v), CDIFolders(e)...)
	if len(others.Injectors()) > 0 {
		return nil
	}
	why := withoutNRI(v, e)
	if why == "" {
		return nil
	}
	return []string{"the GPU Operator's NRI plugin (cdi.nriPluginEnabled) gives no GPUs here: " + why}
}

// withoutNRI says why an engine offers no NRI; "" if it does. An engine with NRI listens at NRI's
// socket: so the socket shows what the engine has loaded, and its files say why it is not there.
// Sources: startListener in pkg/adaptation/adaptation.go of https://github.com/containerd/nri;
// docs/NRI.md of https://github.com/containerd/containerd; crio.nri in docs/crio.conf.5.md of
// https://github.com/cri-o/cri-o.
func withoutNRI(v host.View, e facts.Engine) string {
	settings := engine.NRI{Socket: "/var/run/nri/nri.sock"}
	switch e.Name {
	case "containerd":
		settings = containerd.NRI(e)
	case "crio":
		settings = crio.NRI(e)
	}

	switch {
	case facts.Listens(v, settings.Socket):
		return ""
	case settings.Off != "":
		return settings.Off
	}

	return fmt.Sprintf("%s does not listen at %s, though its files have NRI on: restart %s",
		e.Name, settings.Socket, engine.UnitOf(e))
}
