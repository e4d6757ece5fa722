// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	bin "encoding/binary"
	"math/big"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/must"
)

// authority makes a certificate as dkms(8) does.
func authority(t testing.TB, name string, serial int64) []byte {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		SubjectKeyId: []byte{1, 2, byte(serial)},
		NotAfter:     time.Now().Add(time.Hour),
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key))(t)
	return der
}

// signatureList wraps certificates as firmware and shim do.
func signatureList(certs ...[]byte) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, "\xa1\x59\xc0\xa5\xe4\x94\xa7\x4a\x87\xb5\xab\x15\x5c\x2b\xf0\x72"...)
		out = bin.LittleEndian.AppendUint32(out, uint32(28+16+len(c)))
		out = bin.LittleEndian.AppendUint32(out, 0)
		out = bin.LittleEndian.AppendUint32(out, uint32(16+len(c)))
		out = append(append(out, make([]byte, 16)...), c...)
	}

	return out
}

// TestBuildCert names the certificate to enroll, before there is one too, and says when its
// enrolment waits for the next boot.
func TestBuildCert(t *testing.T) {
	const ubuntu, dkms = "/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub"
	ours, theirs := authority(t, dkmsKeyName, 7), authority(t, dkmsKeyName, 8)
	for _, c := range []struct {
		name    string
		files   files
		cert    string
		waiting bool
	}{
		{"Debian, no key yet", files{"/etc/os-release": "ID=debian\n"}, dkms, false},
		{"Ubuntu, no key yet", files{"/etc/os-release": "ID=ubuntu\n"}, ubuntu, false},
		{"Ubuntu", files{"/etc/os-release": "ID=ubuntu\n", ubuntu: ours}, ubuntu, false},
		{"like Ubuntu", files{"/etc/os-release": "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", ubuntu: ours}, ubuntu, false},
		{"Debian, with a key of the administrator's in Ubuntu's place", files{"/etc/os-release": "ID=debian\n", ubuntu: theirs}, dkms, false},
		{"by DKMS's settings", files{"/etc/os-release": "ID=ubuntu\n", "/etc/dkms/framework.conf.d/site.conf": "mok_certificate=/etc/site.der\n"}, "/etc/site.der", false},
		{"waits", files{dkms: ours, mokNew: "\x07\x00\x00\x00" + string(signatureList(theirs, ours))}, dkms, true},
		{"another one waits", files{dkms: ours, mokNew: "\x07\x00\x00\x00" + string(signatureList(theirs))}, dkms, false},
		{"cut short", files{dkms: ours, mokNew: "\x07\x00"}, dkms, false},
	} {
		trust, err := ReadTrust(running{c.files})
		check.That(t, err == nil && trust.BuildCert == c.cert && trust.Waiting == c.waiting, "%s: %s, waiting %t, %v", c.name, trust.BuildCert, trust.Waiting, err)
	}
}

// running is a View of a machine that runs.
type running struct{ files }

func (running) Live() bool { return true }
func (running) Runs() bool { return true }

func TestTrust(t *testing.T) {
	const (
		mok = "/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"
		db  = "/sys/firmware/efi/efivars/db-d719b2cb-3d3a-4596-a3bc-dad00e67656f"
	)
	ours, theirs := authority(t, dkmsKeyName, 7), authority(t, dkmsKeyName, 8)
	attributes := "\x07\x00\x00\x00"
	for _, c := range []struct {
		name            string
		files           files
		demands, trusts bool
		secureBoot      string
	}{
		{"no EFI", files{"/var/lib/dkms/mok.pub": ours}, false, false, "off"},
		{"EFI hides it", files{"/sys/firmware/efi/fw_platform_size": "64"}, false, false, "unknown"},
		{"off", files{secureBoot: attributes + "\x00", mok: attributes + string(signatureList(ours))}, false, false, "off"},
		{"on, no key yet", files{secureBoot: attributes + "\x01"}, true, false, "on"},
		{"on, enrolled", files{secureBoot: attributes + "\x01", mok: attributes + string(signatureList(theirs, ours)), "/var/lib/dkms/mok.pub": ours}, true, true, "on"},
		{"on, another machine's is enrolled", files{
			secureBoot: attributes + "\x01", mok: attributes + string(signatureList(theirs)), "/var/lib/dkms/mok.pub": ours,
			"/proc/keys": "1 I------ 1 perm 1f030000 0 0 asymmetri DKMS module signing key: 0a4e: X509.rsa 8a []\n",
		}, true, false, "on"},
		{"on, the kernel has the key", files{
			"/etc/os-release": "ID=ubuntu\n", secureBoot: attributes + "\x01", "/var/lib/shim-signed/mok/MOK.der": authority(t, "site key", 3),
			"/proc/keys": "1 I------ 1 perm 1f030000 0 0 asymmetri Site: site key: 0a4e: X509.rsa 8a []\n",
		}, true, true, "on"},
		{"on, in the firmware's db on Ubuntu", files{"/etc/os-release": "ID=ubuntu\nID_LIKE=debian\n", secureBoot: attributes + "\x01", db: attributes + string(signatureList(ours)), "/var/lib/dkms/mok.pub": ours}, true, true, "on"},
		{"on, in the firmware's db on Rocky Linux", files{"/etc/os-release": "ID=rocky\nID_LIKE=\"rhel centos fedora\"\n", secureBoot: attributes + "\x01", db: attributes + string(signatureList(ours)), "/var/lib/dkms/mok.pub": ours}, true, true, "on"},
		{"on, in the firmware's db under a kernel that may not take it", files{"/etc/os-release": "ID=azurelinux\n", secureBoot: attributes + "\x01", db: attributes + string(signatureList(ours)), "/var/lib/dkms/mok.pub": ours}, true, false, "on"},
		{"on, in a file of its own", files{secureBoot: attributes + "\x01", "/sys/firmware/efi/mok-variables/MokListRT": signatureList(ours), "/var/lib/dkms/mok.pub": ours}, true, true, "on"},
		{"on, and the kernel is not locked down", files{secureBoot: attributes + "\x01", "/sys/kernel/security/lockdown": "[none] integrity confidentiality\n", "/sys/module/module/parameters/sig_enforce": "N\n"}, false, false, "on"},
		{"off, but enforced", files{secureBoot: attributes + "\x00", "/sys/module/module/parameters/sig_enforce": "Y\n"}, true, false, "off"},
	} {
		trust, err := ReadTrust(running{c.files})
		must.That(t, err == nil, "%v: %v", c.name, err)
		if trust.SecureBoot != c.secureBoot || trust.Demands() != c.demands || trust.Trusts(trust.Build) != c.trusts {
			t.Errorf("%s: Secure Boot %s, demands %t, trusts %t: %+v", c.name, trust.SecureBoot, trust.Demands(), trust.Trusts(trust.Build), trust)
		}
	}
}

// TestTrustUnseen: keys that the firmware does not give do not count as not enrolled. Some are for
// root alone.
func TestTrustUnseen(t *testing.T) {
	const mok = efivars + "/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"
	v := running{files{mok: "\x07\x00\x00\x00" + string(signatureList(authority(t, dkmsKeyName, 7)))}}
	for _, c := range []struct {
		blind blind
		says  string
	}{
		{blind{View: v, folder: efivars}, "cannot list " + efivars + ": "},
		{blind{View: v, file: mok, why: syscall.EIO}, "cannot read " + mok + ": "},
		{blind{View: v, file: mok, why: syscall.EACCES}, ""},
	} {
		_, err := ReadTrust(c.blind)
		says := err != nil && strings.HasPrefix(err.Error(), c.says)
		check.That(t, says == (c.says != ""), "%q: %v", c.says, err)
	}
}

func TestBuilds(t *testing.T) {
	v := linked{files{
		"/usr/src/nvidia-580.95.05/dkms.conf":                             "x",
		"/var/lib/dkms/nvidia/580.95.05/6.1.0-50/x86_64/module/nvidia.ko": "x",
		"/var/lib/dkms/nvidia/580.95.05/6.1.0-47/amd64/module/nvidia.ko":  "x",
		"/var/lib/dkms/nvidia/580.95.05/6.1.0-47/x86_64/log/make.log":     "x",
		"/var/lib/dkms/nvidia/580.95.05/build/make.log":                   "x",
		"/var/lib/dkms/nvidia-open/570.1/build/x":                         "x",
		"/var/lib/dkms/zfs/2.0/6.1.0-50/x86_64/module/zfs.ko":             "x",
	}, map[string]string{
		"/var/lib/dkms/nvidia/kernel-6.1.0-50-x86_64": "580.95.05/6.1.0-50/x86_64",
		"/var/lib/dkms/nvidia/580.95.05/source":       "/usr/src/nvidia-580.95.05",
		"/var/lib/dkms/nvidia-open/570.1/source":      "/usr/src/nvidia-open-570.1",
	}}
	found, err := Builds(v)
	want := []Build{
		{"nvidia", "580.95.05", "6.1.0-47", "amd64", "built"},
		{"nvidia", "580.95.05", "6.1.0-50", "x86_64", "installed"},
		{"nvidia-open", "570.1", "", "", "added"},
	}
	d := cmp.Diff(want, found)
	check.That(t, d == "" && err == nil, "%v (-want +got)\n%s", err, d)
}
