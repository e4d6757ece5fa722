// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/modinfo"
	"github.com/gpuadm/gpuadm/internal/pattern"
)

// Trust says whose signatures the kernel accepts on modules.
type Trust struct {
	SecureBoot string `json:"secureBoot"`         // on, off, unknown
	Lockdown   string `json:"lockdown,omitempty"` // none, integrity, confidentiality; "" if unknown
	Enforced   string `json:"enforced,omitempty"` // module.sig_enforce: Y, N; "" if unknown

	// Enrolled are the keys of the machine's owner (MOK) and of shim, and those of the firmware
	// (db) where the kernel takes them.
	Enrolled []modinfo.Key `json:"enrolled,omitempty"`
	// Kernels are the common names of all keys that the running kernel knows, built in or not.
	Kernels []string `json:"kernels,omitempty"`

	Build     *modinfo.Key `json:"build,omitempty"`    // what DKMS signs with; nil: it would make a key
	BuildCert string       `json:"-"`                  // its certificate's file, where DKMS has or makes it
	Waiting   bool         `json:"waiting,omitempty"`  // a person confirms it to the firmware at the next boot
	BuildKey  string       `json:"buildKey,omitempty"` // the file with its private half, where there is one
}

// Demands says whether the kernel refuses modules that are not signed by a key it trusts.
// Distributions' kernels lock themselves down under Secure Boot; where they say that they have not,
// they have not.
// Source: kernel_lockdown(7), kernel/module/signing.c in the kernel's tree.
func (t Trust) Demands() bool {
	switch {
	case t.Enforced == "Y", t.Lockdown == "integrity", t.Lockdown == "confidentiality":
		return true
	case t.Lockdown == "none" && t.Enforced == "N":
		return false
	}
	return t.SecureBoot == "on"
}

// Trusts says whether the kernel loads a module that a key has signed. It is exact where gpuadm can
// read certificates; of the keys built into the kernel it knows only the names.
func (t Trust) Trusts(k *modinfo.Key) bool {
	if k == nil {
		return false
	}
	if slices.ContainsFunc(t.Enrolled, k.Same) {
		return true
	}

	// Each machine's own key has this name: another's is enrolled, and this one is not.
	sameName := func(enrolled modinfo.Key) bool { return enrolled.Name == k.Name }
	if k.Name == dkmsKeyName && slices.ContainsFunc(t.Enrolled, sameName) {
		return false
	}
	return k.Name != "" && slices.Contains(t.Kernels, k.Name)
}

// dkmsKeyName is the common name in the certificates that dkms(8) makes.
const dkmsKeyName = "DKMS module signing key"

const (
	efivars    = "/sys/firmware/efi/efivars"
	secureBoot = efivars + "/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	// What mokutil --import writes and MokManager takes away, confirmed or not. Source:
	// src/mokutil.c of https://github.com/lcp/mokutil; MokManager.c and lib/guid.c of
	// https://github.com/rhboot/shim.
	mokNew = efivars + "/MokNew-605dab50-e046-4300-abb6-3dd810dd8b23"
)

// trust finds out which signers' modules the kernel loads.
func (g *gathering) trust() Trust {
	t := g.demands()
	if g.v.Live() {
		t.Enrolled = g.enrolled()
		t.Kernels = keyNames(g.attr("/proc/keys"))
	}
	g.buildKey(&t)
	return t
}

// demands finds out whether the kernel demands signatures, and no more.
func (g *gathering) demands() Trust {
	t := Trust{SecureBoot: "unknown"}
	if g.v.Live() {
		t.SecureBoot = g.secureBoot()
		t.Lockdown = chosen(g.attr("/sys/kernel/security/lockdown"))
		t.Enforced = g.attr("/sys/module/module/parameters/sig_enforce")
	}

	return t
}

// secureBoot reads the firmware's variable: four bytes of attributes, then 1 or 0. A machine that
// did not boot by EFI has no such variable.
func (g *gathering) secureBoot() string {
	data, err := g.v.ReadFile(secureBoot)
	switch {
	case err == nil && len(data) > 4:
		if data[4] == 1 {
			return "on"
		}
		return "off"
	case missing(err) && !g.exists("/sys/firmware/efi"):
		return "off"
	}

	return "unknown"
}

// takesDB says whether the distribution's kernel takes the keys of the firmware's db for modules.
// The mainline kernel has them in its keyring .platform, which verifies what kexec loads, and no
// modules (kernel/module/signing.c, security/integrity/platform_certs). These distributions carry
// the patch "KEYS: Make use of platform keyring for module signature verify":
// - Debian: https://sources.debian.org/patches/linux/6.12.30-1/features/all/db-mok-keyring/; "since
// 5.3.9-1", and as Red Hat has it:
// https://lore.kernel.org/all/qvgp2il2co4iyxkzxvcs4p2bpyilqsbfgcprtpfrsajwae2etc@3z2s2o52i3xg/
// - Ubuntu: https://github.com/canonical/shim-review (README.md, patches of the kernel), and
// https://docs.nvidia.com/igx/user-guide/latest/SW/security/kernel-module-verification.html, where
// a vendor's key in db verifies modules
// - Fedora, RHEL and their derivatives: Red Hat's page in docs/bake.md;
// https://github.com/foxboron/sbctl/issues/52
// - Amazon Linux 2023, whose os-release says that it is like fedora: the changelog in the source
// package of kernel6.12 (2019-04-23, by robeholmes@gmail.com), who first offered it to mainline:
// https://lore.kernel.org/lkml/1556116431-7129-1-git-send-email-robeholmes@gmail.com/
func (g *gathering) takesDB() bool {
	o := g.os()
	for _, id := range []string{"debian", "ubuntu", "fedora", "rhel", "centos"} {
		if o.ID == id || slices.Contains(o.Like, id) {
			return true
		}
	}

	return false
}

// enrolled reads the certificates the boot chain hands to the kernel. shim mirrors its own and its
// owner's into MokListRT, as EFI variables and, where they are too big for those, as a file.
// Source: mok.c of https://github.com/rhboot/shim, security/integrity/platform_certs in the
// kernel's tree.
func (g *gathering) enrolled() (keys []modinfo.Key) {
	const db = "db-d719b2cb-3d3a-4596-a3bc-dad00e67656f"
	files := []string{"/sys/firmware/efi/mok-variables/MokListRT"}
	for _, name := range g.list(efivars) {
		if strings.HasPrefix(name, "MokListRT") || name == db && g.takesDB() {
			files = append(files, path.Join(efivars, name))
		}
	}

	for _, name := range files {
		data, err := g.v.ReadFile(name)
		onlyRoots := errors.Is(err, fs.ErrPermission) // without root its keys are not known
		if err != nil && !missing(err) && !isNoFile(err) && !onlyRoots {
			g.fail("read", name, err)
		}
		if strings.HasPrefix(name, efivars) {
			data = content(data)
		}
		for _, key := range modinfo.EFIKeys(data) {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}

	return keys
}

// content returns an EFI variable without the four bytes of attributes at its beginning.
func content(variable []byte) []byte { return variable[min(4, len(variable)):] }

// buildKey finds the key with which DKMS signs: that of its settings, Ubuntu's one key of the
// machine, or DKMS's own.
// Source: prepare_mok and prepare_signing in dkms.in of https://github.com/dkms-project/dkms and
// https://github.com/dell/dkms.
func (g *gathering) buildKey(t *Trust) {
	private, public := g.buildKeyFiles()
	if !path.IsAbs(public) {
		return
	}

	t.BuildCert = public
	if key, ok := modinfo.Certificate(g.read(public)); ok {
		t.Build = &key
		requests, _ := g.v.ReadFile(mokNew) // readable by root; without it nothing waits
		t.Waiting = slices.ContainsFunc(modinfo.EFIKeys(content(requests)), key.Same)
	}

	if path.IsAbs(private) && g.exists(private) {
		t.BuildKey = private
	}
}

// buildKeyFiles names the files of DKMS's key, as its settings have them.
func (g *gathering) buildKeyFiles() (private, public string) {
	const (
		dkms   = "/var/lib/dkms/mok"
		ubuntu = "/var/lib/shim-signed/mok/MOK"
		conf   = "/etc/dkms/framework.conf"
	)
	private = dkms + ".key"
	public = dkms + ".pub"

	// On other systems DKMS leaves a key in Ubuntu's place alone, since its version 3.0.6.
	o := g.os()
	isUbuntu := o.ID == "ubuntu" || len(o.Like) > 0 && o.Like[0] == "ubuntu"
	if isUbuntu && (g.exists(ubuntu+".der") || !g.exists(public)) {
		private = ubuntu + ".priv"
		public = ubuntu + ".der"
	}

	files := []string{conf}
	for _, name := range g.list(conf + ".d") {
		if strings.HasSuffix(name, ".conf") {
			files = append(files, conf+".d/"+name)
		}
	}

	for _, name := range files {
		for _, setting := range Assignments(string(g.read(name))) {
			switch setting[0] {
			case "mok_signing_key":
				private = setting[1]
			case "mok_certificate":
				public = setting[1]
			}
		}
	}

	return private, public
}

// chosen returns the word in brackets: "none [integrity] confidentiality".
func chosen(words string) string {
	_, after, _ := strings.Cut(words, "[")
	word, _, ok := strings.Cut(after, "]")
	if !ok {
		return ""
	}
	return word
}

// keyNames reads the names of the certificates that /proc/keys lists: proc(5),
// crypto/asymmetric_keys/x509_public_key.c in the kernel's tree. The description of one is its
// subject, which ends in the common name: "asymmetri Debian: CA: 00ab: X509.rsa".
func keyNames(list string) (names []string) {
	for line := range strings.Lines(list) {
		subject := certified(line)
		commonName := subject[strings.LastIndex(subject, ": ")+1:]
		for _, name := range []string{subject, commonName} {
			name = strings.TrimSpace(name)
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// certified returns the subject of the certificate in a line of /proc/keys; "" if it has none.
func certified(line string) string {
	_, text, _ := strings.Cut(line, " asymmetri ")
	for {
		end := strings.LastIndex(text, ": X509")
		if end < 0 {
			return ""
		}
		text = text[:end]

		id := strings.LastIndex(text, ": ")
		if id >= 0 && pattern.Only(text[id+2:], pattern.Digits+"abcdef") {
			return text[:id]
		}
	}
}

// ReadTrust finds out which signers' modules the kernel loads.
func ReadTrust(v host.View) (Trust, error) {
	g := &gathering{v: v}
	return g.trust(), g.err
}

// ReadTrustDemanded is ReadTrust where the kernel demands signatures. Where the kernel loads all
// modules, it says no more than that.
func ReadTrustDemanded(v host.View) (Trust, error) {
	g := &gathering{v: v}
	t := g.demands()
	if g.err != nil || !t.Demands() {
		return t, g.err
	}
	return g.trust(), g.err
}
