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
func NewInitramfs(kernel string, files []string) converge.Thing { return initramfs{kernel, files} }

// Ref names it by the kernel: "6.8.0-88-generic".
func (i initramfs) Ref() converge.Ref {
	return converge.Ref{Kind: "initramfs", Name: i.kernel, Reads: i.files}
}

// image finds the kernel's image: where Debian, RHEL and the boot loader specification have it; ""
// if it has none.
func (i initramfs) image(v host.View) (name string, made time.Time, err error) {
	names := []string{"/boot/initrd.img-" + i.kernel, "/boot/initramfs-" + i.kernel + ".img"}
	if id := oneLine(v, "/etc/machine-id"); id != "" {
		names = append(names, path.Join("/boot", id, i.kernel, "initrd"), path.Join("/boot/efi", id, i.kernel, "initrd"), path.Join("/efi", id, i.kernel, "initrd"))
	}
	for _, name := range names {
		info, err := v.Stat(name)
		if host.NotExist(err) {
			continue
		}
		return name, info.Ctime, err
	}
	return "", made, nil
}

func (i initramfs) Look(_ context.Context, v host.View) (converge.State, error) {
	image, made, err := i.image(v)
	if err != nil {
		return "", err
	}
	if image == "" {
		return "none", nil
	}
	carries, err := i.carries(v)
	if err != nil {
		return "", err
	}
	if !carries {
		return "silent", nil
	}
	for _, name := range i.files {
		info, err := v.Stat(name)
		if host.NotExist(err) {
			info, err = v.Stat(things.NearestFolder(v, name)) // a folder's own time shows that a file was removed
		}
		if err != nil {
			return "", err
		}
		if info.Ctime.After(made) && !info.Ctime.After(v.Now()) { // a time in the future would stay newer for ever
			if !v.Runs() {
				return "", host.FirstBoot // the tools that build an image do not run here
			}
			return olderImage, nil
		}
	}
	return things.UpToDate, nil
}

// carries says whether the image may contain modules that the settings configure. It does not open
// the image: that takes seconds, at each look.
func (i initramfs) carries(v host.View) (bool, error) {
	nouveau := "/lib/modules/" + i.kernel + "/kernel/drivers/gpu/drm/nouveau"
	if _, err := v.Stat(nouveau); err == nil {
		return true, nil
	} else if !host.NotExist(err) {
		return false, err
	}
	files := []string{"/etc/initramfs-tools/modules", "/etc/dracut.conf"}
	for _, dir := range []string{"/etc/dracut.conf.d", "/etc/initramfs-tools/conf.d", "/usr/share/initramfs-tools/modules.d"} {
		names, err := v.ReadDir(dir)
		if err != nil && !host.NotExist(err) {
			return false, err
		}
		for _, n := range names {
			files = append(files, path.Join(dir, n))
		}
	}
	for _, name := range files {
		for line := range strings.Lines(string(mustRead(v, name))) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") && strings.Contains(line, "nvidia") && !strings.Contains(line, "omit") {
				return true, nil
			}
		}
	}
	return false, nil
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
	has := func(program string) bool {
		for _, dir := range []string{"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"} {
			if _, err := h.Stat(dir + program); err == nil {
				return true
			}
		}
		return false
	}
	switch {
	case has("update-initramfs"):
		_, err = h.Do(ctx, "update-initramfs", "-u", "-k", i.kernel)
	case has("dracut"):
		_, err = h.Do(ctx, "dracut", "--force", "--kver", i.kernel, image)
	default:
		return &trouble.Error{
			What: fmt.Sprintf("cannot rebuild %s: neither update-initramfs nor dracut is installed", image),
			Try:  []string{"rebuild it with the tool that built it, then run the same command again"},
		}
	}
	return err
}

// Affected says that a change to a file that the image contains makes the image older.
func (i initramfs) Affected(found converge.State, by converge.Change) converge.State {
	if (found == "" || found == things.UpToDate) && by.Kind == "file" && slices.Contains(i.files, by.Name) {
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
