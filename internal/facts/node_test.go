// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/test/must"
)

// clientPEM is a client certificate with its key, as kubelet keeps it in one file, and when it ends.
func clientPEM(t *testing.T, name string) (string, time.Time) {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	end := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: []string{"system:nodes"}}, NotAfter: end,
	}, &x509.Certificate{SerialNumber: big.NewInt(2)}, &key.PublicKey, key)
	must.OK(t, err)
	der := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})) + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})), end
}

// booted is files of a machine that runs, and the states of its units.
type booted struct {
	files
	units map[string]string
	mu    *sync.Mutex // several goroutines ask
	asked map[string]int
}

func (booted) Live() bool { return true }
func (booted) Runs() bool { return true }

func (r booted) Unit(ctx context.Context, name string) (host.Unit, error) {
	u, _ := r.files.Unit(ctx, name)
	u.Active = r.units[name]
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[name]++
	return u, nil
}

func TestNode(t *testing.T) {
	r := &booted{
		files: files{
			"/proc/sys/kernel/hostname": "gpu-1\n", "/etc/hostname": "old\n", "/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
			"/proc/sys/kernel/random/boot_id": "11111111-2222-4333-8444-555555555555\n", "/sys/devices/system/cpu/online": "0-3,8,10-11\n",
			"/proc/meminfo": "MemTotal:       16384000 kB\nMemFree: 1 kB\n", "/sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
			"/etc/systemd/system/gpuadm.service": "[Service]\nExecStart=/usr/local/sbin/gpuadm apply\n",
			unitFile:                             service1("/usr/bin/kubelet"),
		},
		units: map[string]string{"gpuadm.service": "activating", "kubelet.service": "inactive"}, mu: new(sync.Mutex), asked: map[string]int{},
	}
	f, err := Gather(t.Context(), r, Needs{})
	must.OK(t, err)
	if f.Hostname != "gpu-1" || f.MachineID != "0123456789abcdef0123456789abcdef" || f.BootID != "11111111-2222-4333-8444-555555555555" ||
		f.CPUs != 7 || f.Memory != 16384000<<10 || f.Cgroup != 2 || !f.Booting || f.Kubelet.Active != "inactive" || f.Kubelet.NodeName != "gpu-1" {
		t.Errorf("%+v", f)
	}
	if r.asked["gpuadm.service"] != 1 {
		t.Errorf("systemd was asked %d times", r.asked["gpuadm.service"])
	}
	old := &booted{
		files: files{"/sys/fs/cgroup/memory/x": "", "/proc/cpuinfo": "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\n", "/etc/hostname": "# a comment\n\nold\n", "/etc/machine-id": "uninitialized\n"},
		units: map[string]string{"gpuadm.service": "activating"}, mu: new(sync.Mutex), asked: map[string]int{},
	}
	f, err = Gather(t.Context(), old, Needs{})
	if err != nil || f.Cgroup != 1 || f.CPUs != 2 || f.Hostname != "old" || f.MachineID != "" || f.Memory != 0 || f.Booting || old.asked["gpuadm.service"] != 0 {
		t.Errorf("%+v %v", f, err)
	}
	root := gather(t, r.files)
	if root.BootID != "" || root.CPUs != 0 || root.Memory != 0 || root.Cgroup != 0 || root.Booting || root.Hostname != "old" || root.MachineID == "" {
		t.Errorf("a folder tells what only the running machine has: %+v", root)
	}
}

func TestCounts(t *testing.T) {
	for list, want := range map[string]int{"": 0, "0": 1, "0-127": 128, "0,2,4-5": 4, "3-1": 0, "a": 0, "0-": 0, "-1": 0, "0-99999999": 0, "0,,1": 0} {
		if got := countList(list); got != want {
			t.Errorf("%q are %d CPUs, want %d", list, got, want)
		}
	}
	for text, want := range map[string]uint64{"": 0, "MemTotal: x kB": 0, "MemTotal: 1 kB": 1024, "MemTotal: 99999999999999999999 kB": 0, "Mem: 1 kB": 0} {
		if got := memory(text); got != want {
			t.Errorf("%q is %d bytes, want %d", text, got, want)
		}
	}
}

func TestFlagLists(t *testing.T) {
	if got := labels([]string{" a = b ,c,,=d", "a=e=f"}); len(got) != 2 || got["a"] != "e=f" || got["c"] != "" {
		t.Errorf("%v", got)
	}
	if got := taints("a=b:NoSchedule,,c:NoExecute,d,=x:NoSchedule"); len(got) != 3 || got[0] != (Taint{"a", "b", "NoSchedule"}) || got[2] != (Taint{Key: "d"}) {
		t.Errorf("%v", got)
	}
}
