// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package explain

// packages has what apt, dpkg, dnf and dkms print.
func packages() []Text {
	return []Text{
		{
			Name: "dkms-build", By: "dkms", Phrases: []string{"bad return status for module build on kernel"},
			What:    "The driver's source does not compile for this kernel: the kernel is newer than the driver knows, or its compiler or headers are missing.",
			Matters: "After a reboot into that kernel the machine has no GPU.",
			Try:     []string{"the first error in the make.log that it names", "gpuadm plan driver: a driver that builds for this kernel, or build = \"precompiled\"; until then boot the old kernel"},
			Sources: []string{"https://github.com/pop-os/pop/issues/3811", "https://github.com/Frogging-Family/nvidia-all/issues/70"},
		},
		{
			Name: "dkms-headers", By: "dkms", Phrases: []string{"your kernel headers for kernel", "cannot be found"},
			What:    "The headers of the kernel are not installed, so its modules cannot be built.",
			Matters: "There is no module nvidia for that kernel.",
			Try:     []string{"apt install linux-headers-$(uname -r), or dnf install kernel-devel-$(uname -r)", "gpuadm plan driver: it wants the headers with the driver"},
			Sources: []string{"https://github.com/emilyst/hid-nx-dkms/issues/20", "https://github.com/elementary/os-patches/issues/155"},
		},
		{
			Name: "dpkg-configure", By: "dpkg", Phrases: []string{"dpkg error processing package", "post installation script subprocess returned error"},
			What:    "A package was unpacked, and its script failed. The lines before this one say why; of driver packages it is most often dkms.",
			Matters: "dpkg has a half-configured package: every later apt run stops there.",
			Try:     []string{"explain the lines before it", "then: dpkg --configure -a"},
			Sources: []string{"https://github.com/pop-os/pop/issues/3811", "https://github.com/pop-os/pop/issues/1338"},
		},
		{
			Name: "dpkg-dependency", By: "dpkg", Phrases: []string{"dependency problems prevent configuration of"},
			What:    "The package depends on one that is not configured. That other package failed first.",
			Matters: "The driver is installed in part.",
			Try:     []string{"find the first failure above it; then: dpkg --configure -a; apt-get install -f -s shows what apt would install and remove to fix the rest", "dpkg --audit lists what is half done"},
			Sources: []string{"https://github.com/pop-os/pop/issues/3811", "https://github.com/NVIDIA/nvidia-container-toolkit/issues/361"},
		},
		{
			Name: "dpkg-overwrite", By: "dpkg", Phrases: []string{"trying to overwrite", "which is also in package"},
			What:    "Two packages have the same file: parts of the driver from two sources or of two branches are mixed.",
			Matters: "The installation stops in the middle.",
			Try:     []string{"dpkg -l '*nvidia*' | grep ^ii shows the mix", "gpuadm plan driver: it names the packages that must go; before apt-get install -f, read with -s what it would remove"},
			Sources: []string{"https://github.com/pop-os/shop/issues/121", "https://github.com/xlibre-debian/ubuntu/issues/1"},
		},
		{
			Name: "apt-unmet", By: "apt", Phrases: []string{"unable to correct problems you have held broken packages|the following packages have unmet dependencies"},
			What:    "apt finds no set of versions that fit: a held or pinned package, two repositories with the same packages, or a driver part of a newer version.",
			Matters: "Nothing is installed.",
			Try:     []string{"apt-mark showhold; apt-cache policy and the names in the text show who offers which version", "gpuadm plan driver: it pins all parts to one version and one source"},
			Sources: []string{"https://github.com/canonical/tdx/issues/370", "https://github.com/NVIDIA/ansible-role-nvidia-driver/pull/11"},
		},
		{
			Name: "apt-lock", By: "apt", Phrases: []string{"could not get lock var lib dpkg lock frontend|unable to acquire the dpkg frontend lock|could not get lock var lib apt lists lock"},
			What:    "Another process installs packages: often unattended-upgrades, or cloud-init at the first boot.",
			Matters: "This run did nothing.",
			Try:     []string{"wait until the named process has ended; do not delete the lock", "gpuadm apply --unattended waits and continues"},
			Sources: []string{"https://github.com/servo/ci-runners/issues/57", "https://github.com/mvo5/unattended-upgrades/issues/90"},
		},
		{
			Name: "apt-no-key", By: "apt", Phrases: []string{"the public key is not available no pubkey"},
			What:    "apt does not have the key that signs the repository. NVIDIA changed its key (A4B469963BF863CC) in April 2022.",
			Matters: "No package of that repository is installed or upgraded.",
			Try:     []string{"gpuadm plan driver: it installs the key and names it in the source", "by hand: the package cuda-keyring of your distribution's repository"},
			Sources: []string{"https://github.com/Jimver/cuda-toolkit/issues/27", "https://github.com/NVIDIA/cuda-repo-management/issues/4"},
		},
		{
			Name: "apt-not-signed", By: "apt", Phrases: []string{"the repository", "is not signed"},
			What:    "apt cannot verify the repository: its key is missing or too weak for this apt (SHA-1), or a mirror leaves the signature out.",
			Matters: "No package of that repository is installed or upgraded.",
			Try:     []string{"the lines before it name the key", "for a mirror: url, key and signature in [driver.repo]"},
			Sources: []string{"https://github.com/Jimver/cuda-toolkit/issues/27", "https://github.com/NVIDIA/nvidia-docker/issues/1631", "https://github.com/NVIDIA/cuda-repo-management/issues/39"},
		},
		{
			Name: "apt-signed-by", By: "apt", Phrases: []string{"conflicting values set for option signed by"},
			What:    "Two files in /etc/apt/sources.list.d name the same repository with two different keys.",
			Matters: "apt reads no source at all: not even security updates.",
			Try:     []string{"grep -rl nvidia.github.io /etc/apt/sources.list.d names the files; keep the repository in one of them", "gpuadm plan toolkit"},
			Sources: []string{"https://github.com/NVIDIA/nvidia-container-toolkit/issues/170", "https://github.com/docker/for-linux/issues/1349"},
		},
		{
			Name: "dnf-no-module", By: "dnf, NVIDIA's plugin for it", Phrases: []string{"skipping kernel installation since no kernel module package"},
			What:    "NVIDIA has no built module for that kernel yet, and its plugin keeps dnf from that kernel until there is one.",
			Matters: "The kernel is not upgraded; the GPUs continue to work.",
			Try:     []string{"wait for the package, or build modules here: build = \"dkms\" in [driver], then gpuadm plan driver"},
			Sources: []string{"https://github.com/NVIDIA/yum-packaging-precompiled-kmod/issues/28", "https://developer.nvidia.com/blog/streamlining-nvidia-driver-deployment-on-rhel-8-with-modularity-streams/"},
		},
		{
			Name: "dnf-filtered", By: "dnf", Phrases: []string{"is filtered out by exclude filtering|is filtered out by modular filtering"},
			What:    "dnf hides the package: excludes= in a repository, a versionlock, another stream of a module, or NVIDIA's plugin for kernels without a module.",
			Matters: "The transaction stops, and nothing is installed.",
			Try:     []string{"dnf versionlock list; dnf module list nvidia-driver; grep -r exclude /etc/dnf /etc/yum.repos.d", "gpuadm plan driver: it names the stream"},
			Sources: []string{"https://github.com/NVIDIA/yum-packaging-precompiled-kmod/issues/28", "https://github.com/gridhead/nvidia-auto-installer-for-fedora-linux/pull/60"},
		},
		{
			Name: "dnf-kmod-conflict", By: "dnf", Phrases: []string{"conflicts with kmod nvidia"},
			What:    "A precompiled module and one by dkms exclude each other.",
			Matters: "The transaction stops, and nothing is installed.",
			Try:     []string{"rpm -qa 'kmod-nvidia*' shows which is there", "build in [driver] says which of the two; then gpuadm plan driver"},
			Sources: []string{"https://github.com/NVIDIA/yum-packaging-precompiled-kmod/issues/50", "https://github.com/NVIDIA/yum-packaging-precompiled-kmod/issues/12"},
		},
	}
}
