// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// A layer is what packages, and what is done with them, make of a distribution's root filesystem.
type layer struct {
	name     string
	recipe   string // changes with what more does
	packages []string
	more     func(context.Context, Chroot) error // nil: nothing
}

// layersOf finds the cached layers of a host, the topmost first.
func layersOf(o Options) ([]string, error) {
	if err := checkDist(o); err != nil {
		return nil, err
	}

	var layers []string
	if o.Over != "" {
		layers = append(layers, o.Over)
	}
	if o.Containerd != "" {
		layer, err := engineLayer(o.Containerd)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}

	below, err := distLayers(o)
	return append(layers, below...), err
}

// checkDist refuses a distribution that does not have what the options ask for.
func checkDist(o Options) error {
	switch {
	case o.Docker && o.Dist != dockerDist:
		return fmt.Errorf("cannot boot a host with Docker on %s: only on %s", o, dockerDist)
	case o.SSH && (o.Dist != sshDist || o.Headers || o.Kubelet):
		return fmt.Errorf("cannot boot a host with an SSH server on %s: only on %s", o, sshDist)
	case o.CloudInit && (o.Dist != cloudInitDist || o.Headers || o.Kubelet):
		return fmt.Errorf("cannot boot a host with cloud-init on %s: only on %s", o, cloudInitDist)
	case o.Kubelet && (o.Headers || !slices.Contains(Dists(), o.Dist)):
		return fmt.Errorf("cannot boot a host with kubelet on %s: only on %s", o, strings.Join(Dists(), " and "))
	}
	return nil
}

// distLayers finds the layers of a distribution, with what the options ask for.
func distLayers(o Options) ([]string, error) {
	switch {
	case o.Docker:
		return dockerLayer().over(o.Dist)
	case o.Kubelet:
		return kubeletLayer().over(o.Dist)
	case o.SSH:
		return sshLayer().over(o.Dist)
	case o.CloudInit:
		return cloudInitLayer().over(o.Dist)
	case o.Kernel:
		return kernelLayer().over(o.Dist)
	case o.Headers && o.Dist == RHELish:
		return headersBelowRHEL(o.Dist)
	case o.Headers:
		return headersLayer().over(o.Dist)
	}
	return Rootfs(o.Dist)
}

// headersBelowRHEL finds the layers of a RHEL with headers: they are Debian's, below what makes a
// RHEL of it.
func headersBelowRHEL(dist string) ([]string, error) {
	rhel, err := Rootfs(dist)
	if err != nil {
		return nil, err
	}
	debian, err := headersLayer().over("trixie")
	return append([]string{rhel[0]}, debian...), err
}

// rhelLayer makes of a Debian 13 a host that dnf and rpm manage, and that can build packages for
// them.
func rhelLayer() layer {
	return layer{
		name:     RHELish,
		recipe:   "3",
		packages: []string{"dnf", "rpm", "createrepo-c", "dnf-plugins-core", "gpg-agent"},
		more:     makeRHELish,
	}
}

// headersLayer has what builds modules for a kernel that does not run: of Options.Headers.
func headersLayer() layer {
	return layer{
		name:     "headers",
		recipe:   "1",
		packages: []string{"linux-headers-" + runtime.GOARCH, "dkms", "gcc", "make", "libc6-dev"},
	}
}

// kernelLayer has what makes a machine of its own of a host: a kernel, what makes its initial file
// system, and cloud-init. Of Options.Kernel. The kernel is that of images/chroot/bake.sh, whose few
// modules make the initial file system a matter of seconds.
func kernelLayer() layer {
	return layer{
		name:   "kernel",
		recipe: "1",
		packages: []string{
			"linux-image-cloud-" + runtime.GOARCH, "linux-headers-cloud-" + runtime.GOARCH,
			"initramfs-tools",
			"dkms", "gcc", "make", "libc6-dev",
			"cloud-init",
		},
	}
}

const (
	// cloudInitDist is the distribution of hosts with Options.CloudInit.
	cloudInitDist = "trixie"

	// SeedDir is where cloud-init finds a machine's meta-data and user-data without a cloud
	// (https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html).
	SeedDir = "/var/lib/cloud/seed/nocloud"
)

// cloudInitLayer has cloud-init: of Options.CloudInit.
func cloudInitLayer() layer {
	return layer{
		name:     "cloud-init",
		recipe:   "1",
		packages: []string{"cloud-init"},
	}
}

// SetupKernel makes what Options.Kernel needs, where it is missing: no other host does.
func SetupKernel(ctx context.Context, dist string, log func(string)) error {
	return kernelLayer().build(ctx, dist, log)
}

// Rootfs finds the layers that a distribution's root filesystem is made of, the topmost first.
func Rootfs(dist string) ([]string, error) {
	if dist == RHELish {
		return rhelLayer().over("trixie")
	}
	place, err := rootfsDir(dist)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(place); err != nil {
		return nil, errMissing{"cannot find the root filesystem of " + dist}
	}
	return []string{place}, nil
}

// over finds the layer and what it lies on.
func (l layer) over(dist string) ([]string, error) {
	place, err := l.dir(dist)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(place); err != nil {
		return nil, errMissing{"cannot find the layer " + filepath.Base(place)}
	}
	below, err := Rootfs(dist)
	return append([]string{place}, below...), err
}

// dir is where the layer lies.
func (l layer) dir(dist string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	below, err := belowDir(dist)
	if err != nil {
		return "", err
	}

	key := sha256.Sum256([]byte(l.recipe + " " + filepath.Base(below) + " " + strings.Join(l.packages, " ")))
	return filepath.Join(cache, fmt.Sprintf("%s-%s-%x", dist, l.name, key[:6])), nil
}

// belowDir is where the folder lies that a layer of a distribution lies on.
func belowDir(dist string) (string, error) {
	if dist == RHELish {
		return rhelLayer().dir("trixie")
	}
	return rootfsDir(dist)
}

// build makes the layer where it is missing.
func (l layer) build(ctx context.Context, dist string, log func(string)) error {
	place, err := l.dir(dist)
	if err != nil {
		return err
	}
	return Cached(place, func(scratch string) error {
		below, err := Rootfs(dist)
		if err != nil {
			return err
		}

		log("apt-get install " + strings.Join(l.packages, " "))
		return InChroot(below, scratch, func(c Chroot) error {
			err := c.install(ctx, l.packages)
			if err == nil && l.more != nil {
				err = l.more(ctx, c)
			}
			return err
		})
	})
}
