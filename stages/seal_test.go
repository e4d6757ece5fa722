// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/internal/converge"
	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/spec"
	"github.com/gpuadm/gpuadm/internal/trouble"
	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
	"github.com/gpuadm/gpuadm/test/sim/simhost"
)

// TestSealable: an image is sealed if what is left for first boot needs no network, and nothing
// else is pending.
func TestSealable(t *testing.T) {
	later := func(stage, kind string) converge.Line {
		c := converge.Change{Stage: stage, Ref: converge.Ref{Kind: kind, Name: "x"}}
		return converge.Line{Change: c, Reason: converge.Reason{Deferred: "first boot"}}
	}

	for name, c := range map[string]struct {
		is      converge.Status
		refused string
	}{
		"nothing":     {converge.Status{}, ""},
		"GPUs":        {status(later("mig", "check"), later("modules", "module"), later("services", "fabric")), ""},
		"the cluster": {status(later("join", "file"), later("ready", "node")), ""},
		"packages":    {status(later("packages", "package")), "package x"},
		"a runfile":   {status(later("packages", "runfile")), "runfile x"},
		"pending":     {status(converge.Line{Change: converge.Change{Ref: converge.Ref{Kind: "file", Name: "/etc/x"}}}), "file /etc/x"},
		"cut short":   {converge.Status{Unfinished: "run"}, ""},
	} {
		err := Sealable(c.is)
		told := (*trouble.Error)(nil)
		if want := c.refused != "" || c.is.Unfinished != ""; errors.As(err, &told) != want {
			t.Errorf("%s: %v", name, err)
		} else if want && !strings.Contains(strings.Join(told.Because, " "), c.refused) {
			t.Errorf("%s: because %q", name, told.Because)
		}
	}
}

func status(changes ...converge.Line) (s converge.Status) {
	s.Changes = changes
	return s
}

// image is a recorded machine of which an image is made.
func image(t *testing.T) *simhost.Node {
	t.Helper()
	archive, err := os.ReadFile("../test/hosts/debian12-containerd16.txtar")
	must.OK(t, err)
	n, err := simhost.New(archive)
	must.OK(t, err)
	return n
}

// TestSealLinkedFolder: what lies in a folder that is to be empty goes, also where the folder's
// name is a link to it.
func TestSealLinkedFolder(t *testing.T) {
	n := image(t)
	const place, link = "/etc/mok", "/var/lib/shim-signed/mok"
	if err := errors.Join(n.Mkdir(place, host.Attr{Mode: 0o755}), n.Mkdir("/var/lib/shim-signed", host.Attr{Mode: 0o755}), n.Symlink(link, place),
		n.WriteFile(place+"/MOK.priv", []byte("secret"), host.Attr{Mode: 0o600})); err != nil {
		t.Fatal(err)
	}
	removed, err := Seal(t.Context(), n, spec.Spec{}, converge.Status{}, "1.0.0", false)
	_, left := n.Lstat(place + "/MOK.priv")
	check.That(t, err == nil && errors.Is(left, fs.ErrNotExist), "the key is still in the image: removed %q, %v", removed, err)
}

// TestSealPrivateKey: an image is not sealed with a key of an administrator's in it, that its DKMS
// signs with.
func TestSealPrivateKey(t *testing.T) {
	n := image(t)
	const settings, key = "/etc/dkms/framework.conf", "/etc/site/module.key"
	for _, dir := range []string{"/etc/dkms", "/etc/site"} {
		must.OK(t, n.Mkdir(dir, host.Attr{Mode: 0o755}))
	}
	if err := errors.Join(n.WriteFile(settings, []byte("mok_signing_key="+key+"\nmok_certificate=/etc/site/module.der\n"), host.Attr{Mode: 0o644}),
		n.WriteFile(key, []byte("secret"), host.Attr{Mode: 0o600})); err != nil {
		t.Fatal(err)
	}
	_, err := Seal(t.Context(), n, spec.Spec{}, converge.Status{}, "1.0.0", false)
	told := (*trouble.Error)(nil)
	check.That(t, errors.As(err, &told) && strings.Contains(told.What, "the private key "+key+" lies in it"), "sealed with a private key: %v", err)
	must.OK(t, n.Remove(key))
	_, err = Seal(t.Context(), n, spec.Spec{}, converge.Status{}, "1.0.0", false)
	check.That(t, err == nil, "without the key: %v", err)
}

// TestOtherKubelet: a joined machine of a distribution that gpuadm does not configure is found,
// too.
func TestOtherKubelet(t *testing.T) {
	n := image(t)
	check.None(t, OtherKubelet(n), "found")
	const name = "/var/lib/k0s/kubelet.conf"
	must.OK(t, errors.Join(n.Mkdir("/var/lib/k0s", host.Attr{Mode: 0o755}), n.WriteFile(name, nil, host.Attr{Mode: 0o600})))
	check.Equal(t, OtherKubelet(n), name, "found")
}
