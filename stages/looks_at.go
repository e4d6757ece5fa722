// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
	"syscall"

	"github.com/gpuadm/gpuadm/cloud/kubelet"
	"github.com/gpuadm/gpuadm/drivers"
	"github.com/gpuadm/gpuadm/internal/content"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/kube"
	"github.com/gpuadm/gpuadm/internal/packages"
	"github.com/gpuadm/gpuadm/internal/things"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/mig"
)

// refused is an error about a value that cannot be used.
func (q question) refused(name, why string, try ...string) *trouble.Error {
	return &trouble.Error{
		What: fmt.Sprintf("cannot use %s as %s: %s", name, q.named.In(), why),
		Try:  try,
	}
}

// stat describes a file that the spec names, and refuses what is not a regular file.
func (q question) stat(name string) (host.Info, error) {
	info, err := q.view.Stat(name)
	switch {
	case host.NotExist(err):
		return info, q.missing(name)
	case errors.Is(err, syscall.ELOOP):
		return info, q.refused(name, "it is a link that leads back to itself", q.another())
	case err != nil:
		return info, err
	case !info.Mode.IsRegular():
		return info, q.refused(name, "it is "+host.TypeName(info.Mode)+", not a file", q.another())
	}

	return info, nil
}

// missing is the error of a file that does not exist. A file that the install of packages needs is
// needed now; any other may come into an image before its first boot.
func (q question) missing(name string) error {
	mayComeLater := lookOf(q.named.Key).until == atFirstBoot
	if !q.facts.Live && mayComeLater {
		return host.FirstBoot
	}
	if target, err := q.view.Readlink(name); err == nil {
		dangling := "it is a link to " + target + ", which does not exist"
		return q.refused(name, dangling, "put the file there", q.another())
	}
	return q.refused(name, "it does not exist", "put the file there", q.another())
}

func (q question) another() string { return "name another file with " + q.named.In() }

// read reads a file that the spec names.
func (q question) read(name string) ([]byte, error) {
	info, err := q.stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size > host.MaxFile {
		return nil, q.refused(name, fmt.Sprintf("it is bigger than %d MiB", host.MaxFile>>20), q.another())
	}
	return q.view.ReadFile(name)
}

// readable wants a file that is not empty.
func readable(_ context.Context, q question, name string) error {
	info, err := q.stat(name)
	if err == nil && info.Size == 0 {
		return q.refused(name, "it is empty", "write it again", q.another())
	}
	return err
}

// fileOrNothing refuses a folder in the place of a file that another program may write later.
func fileOrNothing(_ context.Context, q question, name string) error {
	_, err := q.view.Stat(name)
	if host.NotExist(err) {
		return nil
	}
	_, err = q.stat(name)
	return err
}

// keyFile wants the key that signs a repository.
func keyFile(_ context.Context, q question, name string) error {
	data, err := q.read(name)
	if err != nil {
		return err
	}

	trusted := q.spec.Driver.Repo.Fingerprint
	if q.named.Section == "toolkit.repo" {
		trusted = q.spec.Toolkit.Repo.Fingerprint
	}
	err = things.CheckKey(name, data, trusted)
	if err != nil && !host.Public(q.view, name) {
		return q.refused(name, "it is not the key of the fingerprint",
			"put the repository's key there, readable for all users", q.another())
	}
	return err
}

// repository wants the folder of a file:// URL.
func repository(_ context.Context, q question, address string) error {
	folder, isFile := fileOf(address)
	if !isFile {
		return host.Later{Until: whenListsAreRead}
	}

	info, err := q.view.Stat(folder)
	switch {
	case host.NotExist(err) && !q.facts.Live && !q.facts.Baked: // in a folder of files no packager reads it
		return host.Later{Until: atFirstBoot}
	case host.NotExist(err):
		return q.refused(address, "the folder "+folder+" does not exist",
			"put the mirror there, or write another "+q.named.In())
	case err == nil && !info.Mode.IsDir():
		return q.refused(address, folder+" is "+host.TypeName(info.Mode)+", not a folder",
			"write the folder that has the repository's index")
	}

	return err
}

// installer wants NVIDIA's installer with its digest.
func installer(ctx context.Context, q question, address string) error {
	name, isFile := fileOf(address)
	if !isFile {
		return host.Later{Until: whenDownloaded}
	}
	if _, err := q.stat(name); err != nil {
		return err
	}

	found, err := packages.Digest(q.view, name)
	if err != nil {
		return err
	}
	wanted := q.spec.Driver.Runfile.SHA256
	if found.SHA256 == wanted {
		return ctx.Err()
	}
	why := "its sha256 is " + found.SHA256 + ", and sha256 in [driver.runfile] says " + wanted
	return q.refused(name, why,
		"download it again, or write its digest if the file is the right one")
}

// fileOf returns the path in a file:// URL.
func fileOf(address string) (name string, isFile bool) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "file" {
		return "", false
	}
	return u.Path, true
}

// parameter wants a parameter that the module nvidia has.
func parameter(_ context.Context, q question, name string) error {
	return drivers.CheckParameter(name, q.spec.Driver.Version, q.facts.Modules)
}

// program wants a program that can run.
func program(_ context.Context, q question, name string) error {
	info, err := q.stat(name)
	if err == nil && info.Mode&0o111 == 0 {
		file := path.Join(q.view.Root(), name)
		return q.refused(name, "it is not executable", "chmod 755 "+host.ShellWord(file), q.another())
	}
	return err
}

// unitThere wants a unit that systemd can start again.
func unitThere(ctx context.Context, q question, name string) error {
	if !q.view.Live() {
		return host.Later{Until: atFirstBoot}
	}
	const (
		takeOut  = "take it out of stop in [mig]"
		showsAll = "systemctl list-units --type=service shows those that run"
	)
	unit, err := q.view.Unit(ctx, name)
	switch {
	case err != nil:
		return err
	case unit.Load == "masked" || unit.Enabled == "masked":
		const why = "it is masked, so it could not be started again"
		return q.refused(name, why, "systemctl unmask "+name, takeOut)
	case unit.Load == "not-found" || unit.Load == "" && len(unit.Files) == 0:
		return q.refused(name, "systemd has no such unit", showsAll, takeOut)
	}

	return nil
}

// runtimes wants one program of several: nvidia-container-runtime runs the first that exists.
func runtimes(ctx context.Context, q question) []finding {
	var first error
	for _, name := range q.named.Values {
		err := program(ctx, q, name)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}

	return []finding{{strings.Join(q.named.Values, ", "), first}}
}

// layouts wants a file in mig-parted's format that has the layout.
func layouts(_ context.Context, q question, name string) error {
	data, err := q.read(name)
	if err != nil {
		return err
	}

	isPrivate := !host.Public(q.view, name)
	labelNames := q.spec.MIG.FollowLabel && q.spec.MIG.Layout == ""
	if labelNames {
		_, err = mig.ReadLayouts(name, data, isPrivate)
	} else {
		_, err = mig.Asked(q.spec.MIG, data, isPrivate)
	}

	return err
}

// kubeconfig wants a kubeconfig that names a server.
func kubeconfig(_ context.Context, q question, name string) error {
	if _, err := q.stat(name); err != nil {
		return err
	}
	return kube.CheckKubeconfig(q.view, name)
}

// kubeletConfig wants a KubeletConfiguration with the keys that differ.
func kubeletConfig(ctx context.Context, q question, name string) error {
	if err := readable(ctx, q, name); err != nil {
		return err
	}
	data, err := q.read(name)
	if err != nil {
		return err
	}
	err = kubelet.CheckConfig(name, data)
	if err != nil && !host.Public(q.view, name) {
		return q.refused(name, "it is not a KubeletConfiguration", "write one, in YAML or JSON", q.another())
	}
	return err
}

// certificates wants certificates in PEM.
func certificates(_ context.Context, q question, name string) error {
	data, err := q.read(name)
	if err != nil {
		return err
	}

	found := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			why := fmt.Sprintf("its certificate %d cannot be read", found+1)
			return q.refused(name, why, "write the certificates in PEM", q.another())
		}
		found++
	}

	if found > 0 {
		return nil
	}

	why := "it holds no certificate in PEM"
	what := content.Of(data)
	if what != "" && what != "a certificate" {
		why = "it is " + what + ", not certificates in PEM"
	}
	return q.refused(name, why, "write the certificates in PEM", q.another())
}
