// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
)

// initramfs is a kernel's initial file system. It contains copies of modprobe's settings: modules
// that load from it, such as nouveau, follow the copies, and not /etc. Its states are UpToDate,
// olderImage, "none" (the kernel has no image) and "silent": the kernel has no nouveau, and the
// image does not include NVIDIA's modules, so it needs no settings.
type initramfs struct {
	kernel string
	files  []string // of modprobe's settings
}

const olderImage converge.State = "older than the settings that it contains"

// Initramfs wants a kernel's initial file system to be newer than the files, if it contains the
// modules that they configure.
func Initramfs(kernel string, files []string, why string) converge.Want {
	return converge.Following(initramfs{kernel, files}, why)
}

// NewInitramfs builds the thing again.
func NewInitramfs(kernel string, files []string) converge.Thing {
	return initramfs{kernel, files}
}

// Ref names it by the kernel: "6.8.0-88-generic".
func (i initramfs) Ref() converge.Ref {
	return converge.Ref{Kind: "initramfs", Name: i.kernel, Reads: i.files}
}

// image finds the kernel's image, where Debian, RHEL and the boot loader specification have it, and
// when it was made; "" if the kernel has none.
func (i initramfs) image(v host.View) (string, time.Time, error) {
	names := []string{
		"/boot/initrd.img-" + i.kernel,
		"/boot/initramfs-" + i.kernel + ".img",
	}
	if id := oneLine(v, "/etc/machine-id"); id != "" {
		for _, folder := range []string{"/boot", "/boot/efi", "/efi"} {
			names = append(names, path.Join(folder, id, i.kernel, "initrd"))
		}
	}

	for _, name := range names {
		info, err := v.Stat(name)
		if host.NotExist(err) {
			continue
		}
		return name, info.Ctime, err
	}

	return "", time.Time{}, nil
}

func (i initramfs) Look(_ context.Context, v host.View) (converge.State, error) {
	image, made, err := i.image(v)
	if err != nil {
		return "", err
	}
	if image == "" {
		return "none", nil
	}
	needs, err := i.needsSettings(v)
	if err != nil {
		return "", err
	}
	if !needs {
		return "silent", nil
	}

	for _, name := range i.files {
		info, err := v.Stat(name)
		if host.NotExist(err) {
			// A folder's own time shows that a file was removed.
			info, err = v.Stat(things.NearestFolder(v, name))
		}
		if err != nil {
			return "", err
		}
		inFuture := info.Ctime.After(v.Now()) // it would stay newer for ever
		if !info.Ctime.After(made) || inFuture {
			continue
		}
		if !v.Runs() {
			return "", host.FirstBoot // the tools that build an image do not run here
		}
		return olderImage, nil
	}

	return things.UpToDate, nil
}

// needsSettings reports whether the image may contain modules that the settings configure. It does
// not open the image: that takes seconds, at each look.
func (i initramfs) needsSettings(v host.View) (bool, error) {
	gpuDrivers := "/lib/modules/" + i.kernel + "/kernel/drivers/gpu/"
	for _, driver := range []string{"drm/nouveau", "nova-core"} {
		_, err := v.Stat(gpuDrivers + driver)
		if err == nil {
			return true, nil
		}
		if !host.NotExist(err) {
			return false, err
		}
	}

	files := []string{"/etc/initramfs-tools/modules", "/etc/dracut.conf"}
	const ofPackages = "/usr/lib/dracut/dracut.conf.d"
	folders := []string{
		"/etc/dracut.conf.d",
		ofPackages,
		"/etc/initramfs-tools/conf.d",
		"/usr/share/initramfs-tools/modules.d",
	}
	for _, folder := range folders {
		names, err := v.ReadDir(folder)
		if err != nil && !host.NotExist(err) {
			return false, err
		}
		for _, name := range names {
			// A file in /etc replaces a package's of the same name: dracut.conf(5).
			isReplaced := folder == ofPackages && slices.Contains(files, "/etc/dracut.conf.d/"+name)
			if !isReplaced {
				files = append(files, path.Join(folder, name))
			}
		}
	}

	for _, name := range files {
		config, err := mayContain(v, name)
		if err != nil || includesNvidia(config) {
			return err == nil, err
		}
	}
	return false, nil
}

// includesNvidia reports whether a configuration of an image includes NVIDIA's modules.
func includesNvidia(config []byte) bool {
	for line := range strings.Lines(string(config)) {
		isComment := strings.HasPrefix(strings.TrimSpace(line), "#")
		if !isComment && strings.Contains(line, "nvidia") && !strings.Contains(line, "omit") {
			return true
		}
	}

	return false
}

// Make rebuilds the image with the distribution's own tool, for this kernel only.
func (i initramfs) Make(ctx context.Context, h host.Host, to converge.State) error {
	if to != things.UpToDate {
		return nil
	}

	image, _, err := i.image(h)
	if err != nil {
		return err
	}
	switch {
	case hasProgram(h, "update-initramfs"):
		_, err = h.Do(ctx, "update-initramfs", "-u", "-k", i.kernel)
	case hasProgram(h, "dracut"):
		_, err = h.Do(ctx, "dracut", "--force", "--kver", i.kernel, image)
	default:
		return &trouble.Error{
			What: fmt.Sprintf("cannot rebuild %s: neither update-initramfs nor dracut is installed", image),
			Try:  []string{"rebuild it with the tool that built it, then run the same command again"},
		}
	}

	return err
}

func hasProgram(v host.View, program string) bool {
	for _, folder := range []string{"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"} {
		if _, err := v.Stat(folder + program); err == nil {
			return true
		}
	}

	return false
}

// Affected says that a change to a file that the image contains makes the image older.
func (i initramfs) Affected(found converge.State, by converge.Change) converge.State {
	upToDate := found == "" || found == things.UpToDate
	if upToDate && by.Kind == "file" && slices.Contains(i.files, by.Name) {
		return olderImage
	}
	return found
}

// Current says that an older image is rebuilt.
func (i initramfs) Current(found converge.State) converge.State {
	if found == olderImage {
		return things.UpToDate
	}
	return found
}
