// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package explain

// engine has what container engines and the NVIDIA Container Toolkit print.
func engine() []Text {
	return []Text{
		{
			Name: "no-handler", By: "containerd, shown by kubelet", Phrases: []string{"no runtime for", "is configured"},
			What:    "The pod's RuntimeClass names a handler that containerd does not have: its configuration was replaced, or containerd has not restarted since.",
			Matters: "Every pod with this RuntimeClass stays in ContainerCreating, the device plugin's too.",
			Try:     []string{"containerd config dump | grep -A3 runtimes.nvidia", "gpuadm plan runtime, then gpuadm apply runtime"},
			Sources: []string{"https://github.com/NVIDIA/gpu-operator/issues/549", "https://github.com/NVIDIA/gpu-operator/issues/598"},
		},
		{
			Name: "containerd-socket", By: "kubelet", Phrases: []string{"containerd sock connect connection refused|containerd sock connect no such file or directory"},
			What:    "containerd does not run: it is restarting, or it refuses its configuration.",
			Matters: "No pod starts or stops on the node.",
			Try:     []string{"systemctl status containerd; journalctl -u containerd -n 30, and explain its last error", "gpuadm plan runtime"},
			Sources: []string{"https://github.com/NVIDIA/gpu-operator/issues/549", "https://github.com/bottlerocket-os/bottlerocket/issues/2512"},
		},
		{
			Name: "cri-missing", By: "kubelet, crictl, kubeadm", Phrases: []string{"unknown service runtime v1 runtimeservice|unknown service runtime v1alpha2 runtimeservice"},
			What:    "The engine at this socket has no Kubernetes interface: disabled_plugins has \"cri\" (the default of Docker's package), the plugin failed, or it is too old.",
			Matters: "kubelet does not start.",
			Try:     []string{"grep disabled_plugins /etc/containerd/config.toml; journalctl -u containerd | grep -i cri", "take \"cri\" out of disabled_plugins, then systemctl restart containerd"},
			Sources: []string{"https://github.com/containerd/containerd/issues/8032", "https://github.com/containerd/containerd/issues/14121"},
		},
		{
			Name: "containerd-toml", By: "containerd", Phrases: []string{"failed to load toml"},
			What:    "containerd cannot read its configuration: it is no valid TOML, or has a value that containerd does not know. The text says which.",
			Matters: "containerd does not start, and no pod after it.",
			Try:     []string{"fix what it names, then: containerd config dump >/dev/null && systemctl restart containerd", "if gpuadm made the last change: gpuadm diff, gpuadm undo"},
			Sources: []string{"https://github.com/containerd/containerd/pull/7174", "https://github.com/tianon/dockerfiles/pull/713"},
		},
		{
			Name: "containerd-v1-config", By: "containerd 2", Phrases: []string{"failed to load toml", "expect io containerd x vx"},
			What:    "The configuration is of version 1, with short plugin names such as \"cri\" in disabled_plugins, which containerd 2.0 does not read.",
			Matters: "containerd does not start, most often after its upgrade.",
			Try:     []string{"write version = 2 and the long names: io.containerd.grpc.v1.cri"},
			Sources: []string{"https://github.com/containerd/containerd/issues/10905", "https://github.com/containerd/containerd/pull/10907"},
		},
		{
			Name: "containerd-mirrors", By: "containerd", Phrases: []string{"mirrors cannot be set when config path is provided"},
			What:    "The configuration has registry mirrors both in config.toml and by config_path.",
			Matters: "containerd runs without its Kubernetes part: kubelet gets \"unknown service runtime.v1.RuntimeService\".",
			Try:     []string{"move the mirrors into the folder of config_path, take registry.mirrors and registry.configs out, then systemctl restart containerd"},
			Sources: []string{"https://github.com/containerd/containerd/issues/5306", "https://github.com/killer-sh/cks-course-environment/issues/93"},
		},
		{
			Name: "hosts-toml", By: "containerd", Phrases: []string{"failed to decode hosts toml"},
			What:    "A hosts.toml of a registry, below config_path, is no valid TOML, or has no [host], which older versions of containerd require.",
			Matters: "containerd leaves the file out: images of that registry come from elsewhere, or not at all.",
			Try:     []string{"find /etc/containerd/certs.d -name hosts.toml, and fix what the text names; an empty line [host] at the end is enough where there is none"},
			Sources: []string{"https://github.com/containerd/containerd/issues/10144", "https://github.com/containerd/containerd/issues/10027"},
		},
		{
			Name: "runtime-not-found", By: "containerd, Docker", Phrases: []string{"nvidia container runtime executable file not found in|nvidia container runtime no such file or directory"},
			What:    "The engine's configuration names the NVIDIA runtime, and the program is not installed, or not where it says.",
			Matters: "Containers with this handler do not start; if it is the default, none does.",
			Try:     []string{"ls -l $(command -v nvidia-container-runtime)", "gpuadm plan toolkit runtime: it installs the toolkit before it names it"},
			Sources: []string{"https://github.com/NVlabs/BundleSDF/issues/95", "https://github.com/NVIDIA/nvidia-docker/issues/686"},
		},
		{
			Name: "hook-not-found", By: "Docker, runc", Phrases: []string{"nvidia container runtime hook executable file not found in|nvidia container runtime hook no such file or directory"},
			What:    "The toolkit is installed in part: the hook comes with the package nvidia-container-toolkit, which is missing or was renamed.",
			Matters: "No container gets a GPU by docker run --gpus or by the NVIDIA runtime.",
			Try:     []string{"dpkg -S nvidia-container-runtime-hook, or rpm -qf /usr/bin/nvidia-container-runtime-hook", "gpuadm plan toolkit"},
			Sources: []string{"https://github.com/NVIDIA/nvidia-docker/issues/1337", "https://github.com/NVIDIA/nvidia-docker/issues/875"},
		},
		{
			Name: "no-low-level-runtime", By: "nvidia-container-runtime", Phrases: []string{"no runtime binary found from candidate list"},
			What:    "The NVIDIA runtime runs runc or crun after its own work, and finds none on its PATH.",
			Matters: "No container with this handler starts. CRI-O keeps its crun in /usr/libexec/crio.",
			Try:     []string{"runtimes = [\"/usr/libexec/crio/crun\"] in [toolkit], then gpuadm apply toolkit", "or install runc"},
			Sources: []string{"https://github.com/domesticatedviking/TextyMcSpeechy/issues/47", "https://github.com/NVIDIA/nvidia-container-toolkit/pull/1365"},
		},
		{
			Name: "cli-no-library", By: "nvidia-container-cli", Phrases: []string{"nvidia container cli initialization error", "load library failed libnvidia ml so 1"},
			What:    "The driver's libraries are not on the host, or not in the loader's cache: no driver is installed, or it is in a container (the GPU Operator's).",
			Matters: "No container gets a GPU.",
			Try:     []string{"nvidia-smi; ldconfig -p | grep libnvidia-ml", "gpuadm plan driver; with the GPU Operator's driver the toolkit needs root = \"/run/nvidia/driver\""},
			Sources: []string{"https://github.com/NVIDIA/libnvidia-container/issues/231", "https://github.com/docker/for-win/issues/13835", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/154"},
		},
		{
			Name: "cuda-too-new", By: "nvidia-container-cli", Phrases: []string{"requirement error unsatisfied condition"},
			What:    "The image was built for a newer CUDA than this driver supports.",
			Matters: "This image does not start here; older ones do.",
			Try:     []string{"nvidia-smi shows the newest CUDA of the driver", "a newer branch in version of [driver], then gpuadm plan driver; or an image for an older CUDA"},
			Sources: []string{"https://github.com/SyneRBI/PETRIC2/issues/27", "https://github.com/NVIDIA/nvidia-docker/issues/1442"},
		},
		{
			Name: "cdi-unresolvable", By: "containerd, CRI-O, nvidia-container-runtime", Phrases: []string{"unresolvable cdi devices"},
			What:    "The pod asks for a device that no file in /etc/cdi or /run/cdi names: the files are missing, stale, or name the GPUs otherwise (all, instead of the UUID).",
			Matters: "Pods with GPUs do not start.",
			Try:     []string{"nvidia-ctk cdi list shows what there is", "gpuadm plan: a stale specification is a pending change; gpuadm apply writes it again"},
			Sources: []string{"https://github.com/NVIDIA/nvidia-container-toolkit/issues/1239", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1895"},
		},
		{
			Name: "cdi-docker", By: "Docker", Phrases: []string{"could not select device driver cdi with capabilities"},
			What:    "CDI is off in Docker, which has it on by itself from version 28.2 on.",
			Matters: "docker run --device nvidia.com/gpu=… does not start.",
			Try:     []string{"\"features\": {\"cdi\": true} in /etc/docker/daemon.json, then systemctl restart docker", "gpuadm plan runtime with engine = \"docker\" and cdi = true"},
			Sources: []string{"https://github.com/NVIDIA/nvidia-container-toolkit/issues/434", "https://github.com/cncf-tags/container-device-interface/pull/277"},
		},
		{
			Name: "docker-gpu", By: "Docker", Phrases: []string{"could not select device driver", "capabilities gpu"},
			What:    "Docker knows nothing that gives GPUs: the NVIDIA Container Toolkit is not installed, or Docker has not restarted since, or is a snap.",
			Matters: "docker run --gpus does not start.",
			Try:     []string{"command -v nvidia-container-runtime-hook; snap list docker", "gpuadm plan toolkit runtime with engine = \"docker\""},
			Sources: []string{"https://github.com/NVIDIA/nvidia-docker/issues/1352", "https://github.com/NVIDIA/nvidia-docker/issues/1642"},
		},
		{
			Name: "docker-runtime", By: "Docker", Phrases: []string{"unknown or invalid runtime name"},
			What:    "/etc/docker/daemon.json has no such runtime, or Docker has not restarted since it was added.",
			Matters: "Containers with --runtime=nvidia do not start.",
			Try:     []string{"docker info | grep -i runtimes", "gpuadm plan runtime with engine = \"docker\""},
			Sources: []string{"https://github.com/nv-tlabs/3dgrut/issues/71", "https://github.com/Steam-Headless/docker-steam-headless/issues/117"},
		},
		{
			Name: "cdi-empty-edits", By: "nvidia-ctk", Phrases: []string{"invalid device empty device edits"},
			What:    "nvidia-ctk found a GPU and nothing to give to a container, most often as its device files were not there at that moment. It writes no CDI specification at all.",
			Matters: "In CDI mode no container gets a GPU; the device plugin waits.",
			Try:     []string{"ls -l /dev/nvidia*; nvidia-smi, or nvidia-modprobe -c 0 -u, makes the files", "then nvidia-ctk --debug cdi generate says what it looked for; gpuadm plan"},
			Sources: []string{"https://github.com/kaito-project/kaito/issues/2326", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/50"},
		},
	}
}
