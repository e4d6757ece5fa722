// SPDX-License-Identifier: Apache-2.0

package platform

// cos is Container-Optimized OS, in and outside of GKE.
var cos = System{
	ID:    "cos",
	Title: "Container-Optimized OS",
	Driver: Driver{
		Title:    "Google's cos-gpu-installer, or GKE's driver installer",
		TakeOver: "gpuadm cannot take it over on this system, which loads only modules that Google has signed: use an Ubuntu node pool with gpu-driver-version=disabled",
	},
	// /etc is made at each boot, from the image.
	Engine: Engine{Writer: "cos", How: NoNeed},
	// /var is mounted noexec, except a few folders such as this:
	// https://cloud.google.com/container-optimized-os/docs/concepts/disks-and-filesystem
	Programs: "/var/lib/google",
	Limit:    "Container-Optimized OS loads only modules that Google has signed: Google installs the driver, by gpu-driver-version=default or latest of the pool, or by the DaemonSet nvidia-driver-installer",
}
